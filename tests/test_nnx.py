"""Modules: state that moves as Flax's does, and networks that hold them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxnorm


def batch(seed=0, shape=(16, 4, 4, 3)):
    return jnp.asarray(np.random.default_rng(seed).gamma(2.0, size=shape), "float32")


def test_training_and_inference_are_those_of_flax():
    ours = jaxnorm.nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    theirs = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    for seed in range(3):
        np.testing.assert_allclose(ours(batch(seed)), theirs(batch(seed)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.mean[...], theirs.mean[...], rtol=1e-6)
    # Our running variance is unbiased, Flax's is not.
    count = batch()[..., 0].size
    start = 0.9**3
    corrected = start + (theirs.var[...] - start) * count / (count - 1)
    np.testing.assert_allclose(ours.var[...], corrected, rtol=1e-5)
    theirs.var[...] = ours.var[...]
    np.testing.assert_allclose(
        ours(batch(9), use_running_average=True),
        theirs(batch(9), use_running_average=True),
        rtol=1e-5,
        atol=1e-5,
    )


def test_unitized_starts_as_batch_norm():
    plain = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    unitized = jaxnorm.nnx.UnitizedBatchNorm(3, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(unitized(batch()), plain(batch()), atol=1e-6)
    np.testing.assert_array_equal(unitized.var[...], plain.var[...])


def test_unitized_passes_its_parameters_on():
    layer = jaxnorm.nnx.UnitizedBatchNorm(
        3, alpha_init=nnx.initializers.constant(0.4), pixels=3, epsilon=1e-3, rngs=nnx.Rngs(0)
    )
    expected, _ = jaxnorm.unitized_batch_norm(
        batch(), jnp.full(3, 0.4, "float32"), eps=1e-3, pixels=3
    )
    np.testing.assert_allclose(layer(batch()), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["BatchNorm", "UnitizedBatchNorm"])
def test_inference_moves_no_state_and_view_chooses_it(name):
    layer = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    frozen = nnx.view(layer, use_running_average=True)
    before = np.array(layer.mean[...])
    frozen(batch())
    np.testing.assert_array_equal(layer.mean[...], before)
    layer(batch())
    np.testing.assert_allclose(layer.mean[...], 0.01 * batch().mean((0, 1, 2)), rtol=1e-4)


def test_an_empty_batch_leaves_the_running_statistics():
    layer = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    layer(batch(), mask=jnp.zeros((16, 1, 1, 1), bool))
    np.testing.assert_array_equal(layer.mean[...], 0)
    np.testing.assert_array_equal(layer.var[...], 1)


def test_without_scale_and_bias_there_are_none():
    layer = jaxnorm.nnx.BatchNorm(3, use_scale=False, use_bias=False, rngs=nnx.Rngs(0))
    assert not jax.tree.leaves(nnx.state(layer, nnx.Param))
    np.testing.assert_allclose(layer(batch()).mean((0, 1, 2)), 0, atol=1e-5)


def test_training_under_jit_and_grad_moves_state_once():
    layer = jaxnorm.nnx.UnitizedBatchNorm(3, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(layer, x):
        return nnx.grad(lambda layer: jnp.sum(layer(x) ** 3))(layer)

    gradient = step(layer, batch())
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(layer.mean[...], 0.01 * batch().mean((0, 1, 2)), rtol=1e-4)


def test_other_feature_counts_are_refused():
    with pytest.raises(ValueError, match="num_features must be at least 1; got 0"):
        jaxnorm.nnx.BatchNorm(0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the last axis of x must hold 4 features"):
        jaxnorm.nnx.BatchNorm(4, rngs=nnx.Rngs(0))(batch())


def parameters(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(
    ("depth", "norm", "count"),
    [
        (20, jaxnorm.nnx.BatchNorm, 273_098),
        (20, jaxnorm.nnx.UnitizedBatchNorm, 273_802),
        (110, jaxnorm.nnx.BatchNorm, 1_734_698),
        (110, jaxnorm.nnx.UnitizedBatchNorm, 1_738_762),
    ],
)
def test_residual_networks_have_the_parameters_of_the_papers_code(depth, norm, count):
    def build():
        return jaxnorm.models.PreActResNet(depth, classes=10, norm=norm, rngs=nnx.Rngs(0))

    assert parameters(nnx.eval_shape(build)) == count


def test_a_network_halves_the_resolution_twice_and_classifies():
    model = jaxnorm.models.PreActResNet(8, classes=5, channels=1, rngs=nnx.Rngs(0))
    x = batch(shape=(2, 9, 9, 1))
    assert model.last_normalized(x).shape == (2, 3, 3, 64)
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize("depth", [2, 21])
def test_depths_that_make_no_stages_are_refused(depth):
    with pytest.raises(ValueError, match=rf"depth must be 6k \+ 2 .* got {depth}"):
        jaxnorm.models.PreActResNet(depth, classes=10, rngs=nnx.Rngs(0))
