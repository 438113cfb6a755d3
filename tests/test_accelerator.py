"""Compares results of an accelerator and of the CPU.

The tests are for layers, and for functions that have a special form for accelerators.

The tests need a TPU or GPU, and are skipped without one. To run the tests, use `pytest -m
accelerator`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
import jaxnorm
import pruning

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.skipif(jax.default_backend() == "cpu", reason="needs a TPU or GPU"),
]


def data(shape, mean=0.0, seed=0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(np.float32)


def on_both(function, *args):
    """The results of `function` on the accelerator, and its results on the CPU."""
    cpu = jax.devices("cpu")[0]
    found = jax.jit(function)(*args)
    with jax.default_device(cpu):
        expected = jax.jit(function)(*jax.device_put(args, cpu))
    return jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(jax.device_get(expected))


@pytest.mark.parametrize("factor", [jaxnorm.interpolated, jaxnorm.bounded])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("shape", [(256, 1024), (64, 14, 14, 256)])
def test_layers_and_their_gradients_agree_with_the_cpu(shape, mean, factor):
    # If the cotangent equalled the input, the gradient would be nearly zero, up to rounding errors.
    x, upstream = jnp.asarray(data(shape, mean)), jnp.asarray(data(shape, seed=1))

    def both(x, alpha, upstream):
        def loss(x, alpha):
            y, _ = jaxnorm.unitized_batch_norm(x, alpha, 2, factor=factor)
            plain, statistics = jaxnorm.batch_norm(x)
            return jnp.sum((y + plain) * upstream), (y, plain, statistics.var)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, alpha)[1:], loss(x, alpha)[1]

    alpha = jnp.linspace(0, 1, shape[-1], dtype="float32")
    for found, expected in zip(*on_both(both, x, alpha, upstream), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


def test_bfloat16_layers_have_float32_statistics():
    x = jnp.asarray(data((4096, 64), 100.0), jnp.bfloat16)
    y, statistics = jax.jit(lambda x: jaxnorm.unitized_batch_norm(x, 0.0))(x)
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(statistics.var, exact.var(0), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(y, np.float64).std(0), 1, atol=5e-3)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: pruning.weight_tests.ks_distance(x, scale=0.9), (data(1 << 16),)),
        (geometry.angles, (data((300, 40)),)),
        (geometry.distances, (data((300, 40)),)),
        (lambda x: geometry.mean_field.rescale_step(x @ x.T), (data((24, 64)),)),
        (jaxnorm.shift.emd_1d, (data((512, 8)), data((512, 8), 1.0))),
        (pruning.fermat, (data((64, 144)),)),
        (
            lambda key: geometry.random_network(
                key, jnp.asarray(data((16, 32))), depth=5, width=64
            ),
            (None,),
        ),
    ],
    ids=["ks", "angles", "distances", "mean_field_rescale", "emd_1d", "fermat", "random_network"],
)
def test_functions_with_a_form_for_accelerators_agree_with_the_cpu(function, args, key):
    args = tuple(key if a is None else jnp.asarray(a) for a in args)
    for found, expected in zip(*on_both(function, *args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
