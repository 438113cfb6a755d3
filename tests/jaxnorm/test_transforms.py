"""Statistics under transformations of a network: remat, nested vmap, ensembles, averages."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxnorm
from jaxnorm.nnx import BatchNorm
from tests.support.layers import layer_functions

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.gamma(2.0, size=(12, 3)), "float32")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.norm = nnx.Linear(3, 3, rngs=rngs), BatchNorm(3, momentum=0.9, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.norm(self.linear(x)))


class RecomputedBlock(Block):
    __call__ = nnx.remat(Block.__call__)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        return jaxnorm.linen.BatchNorm(use_running_average=False, momentum=0.9)(x)


def applied(layer, variables, x) -> tuple[Any, Any]:
    y, updated = layer.apply(variables, x, mutable="batch_stats")
    return y, updated["batch_stats"]


def test_recomputed_statistics_are_counted_once():
    states = []
    for kind in (Block, RecomputedBlock):
        model = nnx.Sequential(kind(nnx.Rngs(0)), kind(nnx.Rngs(1)))
        nnx.jit(nnx.grad(lambda model: jnp.square(model(X)).sum()))(model)
        states.append(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *states)
    h = X @ nnx.Linear(3, 3, rngs=nnx.Rngs(0)).kernel[...]
    np.testing.assert_allclose(states[1]["layers"][0]["norm"]["mean"], 0.1 * h.mean(0), rtol=1e-4)


def test_recomputed_statistics_of_linen_are_counted_once():
    model = linen.remat(LinenBlock)()
    variables = model.init(jax.random.key(0), X)

    def loss(params, statistics):
        y, updated = applied(model, {"params": params, "batch_stats": statistics}, X)
        return jnp.square(y).sum(), updated

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    _, updated = gradient(variables["params"], variables["batch_stats"])
    np.testing.assert_allclose(updated["BatchNorm_0"]["mean"], 0.1 * X.mean(0), rtol=1e-5)


@pytest.mark.parametrize("shared", ["none", "inner", "outer", "both"])
def test_a_nested_vmap_shares_statistics_over_the_axes_that_are_named(shared):
    x = RNG.gamma(2.0, size=(2, 3, 5, 4)).astype("float32")
    axes = {"none": (), "inner": (1,), "outer": (0,), "both": (0, 1)}[shared]
    names = tuple(("outer", "inner")[axis] for axis in axes)
    layer = jaxnorm.linen.BatchNorm(use_running_average=False, axis_name=names or None)
    variables = layer.init(jax.random.key(0), jnp.asarray(x[0, 0]))

    inner = jax.vmap(lambda x: applied(layer, variables, x), axis_name="inner")
    y, updated = jax.jit(jax.vmap(inner, axis_name="outer"))(jnp.asarray(x))
    batch = (*axes, 2)
    mean, var = x.mean(batch, keepdims=True), x.var(batch, keepdims=True)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)
    running = np.broadcast_to(0.01 * mean, (2, 3, 1, 4))[:, :, 0]
    np.testing.assert_allclose(updated["mean"], running, rtol=1e-4)


def test_an_ensemble_has_statistics_for_each_member():
    vmap: Any = linen.vmap
    ensemble = vmap(
        LinenBlock,
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True},
        axis_size=4,
        in_axes=None,
    )()
    variables = ensemble.init(jax.random.key(0), X)
    y, updated = jax.jit(lambda variables: applied(ensemble, variables, X))(variables)
    mean = updated["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(mean, np.tile(0.1 * X.mean(0), (4, 1)), rtol=1e-5)
    x = np.asarray(X)
    np.testing.assert_allclose(y[3], (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), atol=1e-5)


def test_jacobians_of_single_examples_are_those_of_the_affine_map():
    layer = BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
    layer.var[...] = jnp.array([0.25, 1, 4], "float32")
    jacobians = jax.jit(jax.vmap(jax.jacrev(lambda x: layer(x[None])[0])))(X)
    expected = np.diag(1 / np.sqrt(np.array([0.25, 1, 4]) + 1e-5))
    np.testing.assert_allclose(jacobians, np.broadcast_to(expected, (12, 3, 3)), rtol=1e-5)


def test_gradients_of_single_examples_sum_to_that_of_the_batch():
    model = Block(nnx.Rngs(0))
    model.eval()
    graph, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)

    def loss(params, x):
        return jnp.square(nnx.merge(graph, params, statistics)(x)).sum()

    single = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, X[:, None])
    whole = jax.jit(jax.grad(loss))(params, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.sum(0), b, rtol=1e-4), single, whole)


def test_averaged_weights_need_their_own_statistics():
    models = [Block(nnx.Rngs(seed)) for seed in (0, 1)]
    for model in models:
        jaxnorm.nnx.recalibrate(model, [X])
    states = [nnx.state(model) for model in models]
    average = nnx.clone(models[0])
    nnx.update(average, jax.tree.map(lambda a, b: (a + b) / 2, *states))
    h = np.asarray(average.linear(X))
    averaged_var = np.array(average.norm.var[...])
    # The average of running variances is not the variance in the network with averaged weights.
    assert (averaged_var > 1.2 * h.var(0)).any()
    jaxnorm.nnx.recalibrate(average, [X[:4], X[4:]])
    np.testing.assert_allclose(average.norm.mean[...], h.mean(0), rtol=1e-4)
    np.testing.assert_allclose(average.norm.var[...], h.var(0), rtol=1e-4)


# Type checks are off, because jaxtyping cannot compare two sizes if one of them is symbolic.
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", layer_functions())
@pytest.mark.parametrize("shape", ["n, 3", "n, 4, 4, 3", "n, h, w, 3"])
def test_training_is_exported_for_any_batch_size(function, shape):
    """Only for a known batch size, the mean of a part of the batch is subtracted first."""
    alpha = (0.5,) if function is jaxnorm.unitized_batch_norm else ()
    exported = jax.export.export(jax.jit(lambda x: function(x, *alpha)))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), "float32")
    )
    sides = len(exported.in_avals[0].shape) - 2
    for samples in (1, 12):
        x = jnp.asarray(RNG.gamma(2.0, size=(samples, *[4] * sides, 3)), "float32")
        for found, expected in zip(
            *map(jax.tree.leaves, (exported.call(x), function(x, *alpha))), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
