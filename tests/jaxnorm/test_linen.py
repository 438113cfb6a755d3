"""Linen modules equal the NNX layers to the last bit, and replace the layers of Flax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxnorm
from tests.support import numpy_layers
from tests.support.layers import layer_classes
from tests.support.numpy_layers import arguments, assert_outcome, assert_rounded_once, called_with

NAMES = layer_classes(jaxnorm.linen)
OPTIONS = {
    "default": {},
    "axis": {"axis": 1},
    "bfloat16": {"dtype": jnp.bfloat16},
    "bare": {"use_scale": False, "use_bias": False, "epsilon": 1e-2, "momentum": 0.5},
    "ghost": {"groups": 4, "correction": jaxnorm.bessel},
}


def batch(shape=(16, 4, 4, 3)):
    return jnp.asarray(np.random.default_rng(0).gamma(2.0, size=shape), "float32")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_nnx_and_linen_agree_bit_for_bit(name, options):
    x = batch((16, 3, 4, 4) if "axis" in options else (16, 4, 4, 3))
    if name == "UnitizedBatchNorm":
        options = options | {"alpha_init": nnx.initializers.constant(0.4)}
    new = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0), **options)
    old = getattr(jaxnorm.linen, name)(**options)
    variables = old.init(jax.random.key(0), x, use_running_average=False)
    for inference in (False, True):
        y, updated = old.apply(variables, x, use_running_average=inference, mutable="batch_stats")
        np.testing.assert_array_equal(y, new(x, use_running_average=inference))
        for part in ("mean", "var"):
            np.testing.assert_array_equal(updated["batch_stats"][part], getattr(new, part)[...])
        variables = variables | updated


def test_it_takes_the_place_of_flax():
    x = batch()
    ours, theirs = (
        module.BatchNorm(use_running_average=False) for module in (jaxnorm.linen, linen)
    )
    variables = theirs.init(jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(
        jnp.shape, ours.init(jax.random.key(0), x)
    )
    found, expected = (
        np.asarray(layer.apply(variables, x, mutable="batch_stats")[0]) for layer in (ours, theirs)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_initialization_updates_no_statistics_and_needs_no_mapped_axis(name):
    layer = getattr(jaxnorm.linen, name)(use_running_average=False, axis_name="devices")
    statistics = layer.init(jax.random.key(0), batch())["batch_stats"]
    np.testing.assert_array_equal(statistics["mean"], 0)
    np.testing.assert_array_equal(statistics["var"], 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_with_ghost_batches_is_initialized_by_one_sample(name):
    layer = getattr(jaxnorm.linen, name)(use_running_average=False, groups=4)
    variables = layer.init(jax.random.key(0), batch()[:1])
    expected = layer.init(jax.random.key(0), batch())
    jax.tree.map(np.testing.assert_array_equal, variables, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_choice_between_training_and_inference_must_be_made(name):
    with pytest.raises(Exception, match="use_running_average"):
        getattr(jaxnorm.linen, name)().init(jax.random.key(0), batch())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", NAMES)
def test_the_choice_between_training_and_inference_must_be_static(name):
    """Under `jit`, a step's argument `train` is traced unless it is declared static."""
    x = batch()
    layer = getattr(jaxnorm.linen, name)()
    new = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    message = "use_running_average must be True or False; got a traced value: make it a static arg"
    for call in (
        lambda use: layer.init(jax.random.key(0), x, use),
        lambda use: nnx.clone(new)(x, use),
        lambda use: nnx.clone(new)(x, use_running_average=use, update_running_average=False),
    ):
        with pytest.raises(TypeError, match=message):
            jax.jit(call)(True)


def test_a_mask_counts_what_it_keeps():
    x = batch()
    keep = jnp.arange(16) < 5
    layer = jaxnorm.linen.BatchNorm(use_running_average=False, momentum=0.0)
    variables = layer.init(jax.random.key(0), x)
    _, updated = layer.apply(variables, x, mask=keep[:, None, None, None], mutable="batch_stats")
    found = jnp.asarray(updated["batch_stats"]["mean"])
    np.testing.assert_allclose(found, x[:5].mean((0, 1, 2)), rtol=1e-5)


def test_a_layer_of_a_network_trains_under_jit_and_grad():
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = jaxnorm.linen.UnitizedBatchNorm()(linen.Dense(4)(x), use_running_average=not train)
            return linen.Dense(1)(linen.relu(x))

    x = batch((8, 3))
    network = Network()
    variables = network.init(jax.random.key(0), x, train=False)

    @jax.jit
    def gradient(params, batch_stats):
        def loss(params):
            y, updated = network.apply(
                {"params": params, "batch_stats": batch_stats}, x, train=True, mutable="batch_stats"
            )
            return jnp.square(y).sum(), updated

        return jax.grad(loss, has_aux=True)(params)

    grads, updated = gradient(variables["params"], variables["batch_stats"])
    assert set(grads["UnitizedBatchNorm_0"]) == {"alpha", "scale", "bias"}
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    mean = updated["batch_stats"]["UnitizedBatchNorm_0"]["mean"]
    assert jnp.abs(mean).max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_linen_has_the_reference_s_outcome_in_every_pair_of_options(name):
    layer = getattr(jaxnorm.linen, name)
    statistics = {
        "mean": jnp.asarray(numpy_layers.MEAN, "float32"),
        "var": jnp.asarray(numpy_layers.VAR, "float32"),
    }
    for case in numpy_layers.cases(name, layer):
        made = layer(**arguments(case))
        x, call = called_with(case)
        first = {k: v for k, v in call.items() if k == "use_running_average"}
        initial = made.init(jax.random.key(0), x, **first)
        assert {leaf.dtype.name for leaf in initial["batch_stats"].values()} == {"float32"}
        variables = {"params": initial.get("params", {}), "batch_stats": statistics}
        y, updated = made.apply(variables, x, mutable="batch_stats", **call)
        after: Any = updated["batch_stats"]
        assert_outcome(case, y, after["mean"], after["var"])


@pytest.mark.parametrize("name", numpy_layers.STATELESS)
def test_layers_without_statistics_by_numpy_in_every_pair_of_options(name):
    layer = getattr(jaxnorm.linen, name)
    for options, x, expected in numpy_layers.stateless_cases(name, layer):
        y, _ = layer(**options).init_with_output(jax.random.key(0), jnp.asarray(x))
        assert_rounded_once(y, expected, options["dtype"] or x.dtype)
