"""Running statistics are used, updated and frozen independently of each other and of parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxnorm
from jaxnorm.models import MLP
from jaxnorm.nnx import BatchNorm, UnitizedBatchNorm, norm_parameters
from tests.support.layers import layer_classes
from tests.support.numpy_programs import evaluated

X = jnp.asarray(np.random.default_rng(0).gamma(2.0, size=(16, 3)), "float32")
# The running statistics begin as 0 and 1. One update with momentum 0.99 gives these values.
MEAN, VAR = X.mean(0) / 100, 1 + (X.var(0, ddof=1) - 1) / 100


@pytest.mark.parametrize("name", layer_classes(jaxnorm.nnx))
@pytest.mark.parametrize("use", [False, True])
@pytest.mark.parametrize("update", [None, False, True])
def test_statistics_are_used_and_updated_by_two_switches(name, use, update):
    options = {"use_running_average": use, "update_running_average": update}
    new = getattr(jaxnorm.nnx, name)(3, **options, rngs=nnx.Rngs(0))
    old = getattr(jaxnorm.linen, name)(**options)
    variables = old.init(jax.random.key(0), X)
    plain = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    expected = plain(X, use_running_average=use)
    y, updated = old.apply(variables, X, mutable="batch_stats")
    np.testing.assert_array_equal(new(X), expected)
    np.testing.assert_array_equal(y, expected)
    is_updated = update if update is not None else not use
    mean, var = (MEAN, VAR) if is_updated else (jnp.zeros(3), jnp.ones(3))
    for found in (nnx.to_pure_dict(nnx.state(new, nnx.BatchStat)), updated["batch_stats"]):
        np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(found["var"], var, rtol=1e-5)


def test_a_call_and_a_view_switch_the_update():
    layer = BatchNorm(3, rngs=nnx.Rngs(0))
    layer(X, update_running_average=False)
    nnx.view(layer, update_running_average=False)(X)
    np.testing.assert_array_equal(layer.mean[...], 0)
    layer.eval()
    layer(X, update_running_average=True)
    np.testing.assert_allclose(layer.mean[...], MEAN, rtol=1e-5)


def test_a_view_changes_only_what_it_is_given():
    frozen = nnx.view(BatchNorm(3, rngs=nnx.Rngs(0)), update_running_average=False)
    in_training = nnx.view(nnx.view(frozen, use_running_average=True), use_running_average=False)
    np.testing.assert_allclose(in_training(X).mean(0), 0, atol=1e-6)
    np.testing.assert_array_equal(frozen.mean[...], 0)
    nnx.view(in_training, update_running_average=True)(X)
    np.testing.assert_allclose(frozen.mean[...], MEAN, rtol=1e-5)


def test_without_an_update_a_layer_is_pure():
    layer = BatchNorm(3, update_running_average=False, epsilon=0.5, rngs=nnx.Rngs(0))
    # An update of the layer under `jit` would raise an error.
    gradient = jax.jit(jax.grad(lambda x: jnp.square(layer(x)).sum()))
    # A feature with variance v contributes n v / (v + ε) to the loss of n samples.
    x = np.asarray(X, float)
    expected = 2 * 0.5 * (x - x.mean(0)) / (x.var(0) + 0.5) ** 2
    np.testing.assert_allclose(gradient(X), expected, rtol=1e-3, atol=1e-5)


def network(norm):
    return MLP(inputs=3, widths=(4, 4), classes=2, norm=norm, rngs=nnx.Rngs(0))


def trained(model, wrt):
    """Names of the arrays that a step of training changes."""
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=wrt)
    before = nnx.to_flat_state(nnx.state(model))
    before = {path: np.array(leaf[...]) for path, leaf in before}
    loss = lambda model: jnp.square(model(X) - 1).mean()  # noqa: E731
    gradient = nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, wrt)))(model)
    optimizer.update(model, gradient)
    after = nnx.to_flat_state(nnx.state(model))
    return {path for path, leaf in after if not np.array_equal(leaf[...], before[path])}


@pytest.mark.parametrize("norm", [BatchNorm, nnx.BatchNorm, UnitizedBatchNorm])
def test_parameters_of_norms_are_frozen_by_a_filter(norm):
    model = network(norm)
    changed = trained(model, nnx.All(nnx.Param, nnx.Not(norm_parameters(model))))
    statistics = {("norms", i, name) for i in (0, 1) for name in ("mean", "var")}
    assert {path for path in changed if path[0] == "norms"} == statistics
    assert any(path[-1] == "kernel" for path in changed)


def test_statistics_are_frozen_by_a_filter_of_layers():
    model = network(BatchNorm)
    model.train()
    model.set_attributes(nnx.PathContains(0), use_running_average=True)
    frozen = {("norms", 0, "mean"), ("norms", 0, "var")}
    changed = trained(model, nnx.All(norm_parameters(model), nnx.PathContains("norms")))
    assert {path[:2] for path in changed} == {("norms", 0), ("norms", 1)}
    assert not changed & frozen


def test_parameters_of_a_users_own_kind_are_found_too():
    class Sharded(nnx.Param):
        pass

    layer = BatchNorm(3, rngs=nnx.Rngs(0))
    layer.scale = Sharded(jnp.ones(3))
    paths = nnx.to_flat_state(nnx.state(layer, norm_parameters(layer))).paths
    assert set(paths) == {("scale",), ("bias",)}


def test_replaced_layers_keep_the_switch_and_recalibration_needs_none():
    model = nnx.Sequential(BatchNorm(3, update_running_average=False, rngs=nnx.Rngs(0)))
    jaxnorm.nnx.replace_batch_norm(model, jaxnorm.nnx.UnitizedBatchNorm)
    layer: Any = model.layers[0]
    model(X)
    np.testing.assert_array_equal(layer.mean[...], 0)
    jaxnorm.nnx.recalibrate(model, [X])
    np.testing.assert_allclose(layer.mean[...], X.mean(0), rtol=1e-5)
    assert layer.update_running_average is False


def layers(names=None, **options):
    """NNX and Linen layers with running mean 3 and variance 5, as functions of an input."""
    for name in names or layer_classes(jaxnorm.nnx):
        new = getattr(jaxnorm.nnx, name)(3, momentum=0.9, rngs=nnx.Rngs(0), **options)
        new.mean[...], new.var[...] = jnp.full(3, 3.0, "float32"), jnp.full(3, 5.0, "float32")
        graph, state = nnx.split(new)

        def by_nnx(x, mask=None, graph=graph, state=state):
            layer = nnx.merge(graph, state, copy=True)
            y = layer(x, mask=mask)
            return y, layer.mean[...], layer.var[...]

        old = getattr(jaxnorm.linen, name)(
            **{"use_running_average": False, "momentum": 0.9} | options
        )
        started = {"mean": jnp.full(3, 3.0, "float32"), "var": jnp.full(3, 5.0, "float32")}
        params = old.init(jax.random.key(0), X).get("params", {})

        def by_linen(x, mask=None, old=old, params=params, started=started):
            variables = {"params": params, "batch_stats": started}
            y, updated = old.apply(variables, x, mask=mask, mutable="batch_stats")
            return y, updated["batch_stats"]["mean"], updated["batch_stats"]["var"]

        yield from (by_nnx, by_linen)


@pytest.mark.parametrize("use", [False, True])
def test_running_statistics_follow_the_batch_and_not_what_it_becomes(use):
    """The update uses the statistics of the input, not the statistics of the normalized output."""
    x = np.asarray(X, np.float64) * 2 + 1
    mean = 0.9 * 3 + 0.1 * x.mean(0)
    var = 0.9 * 5 + 0.1 * x.var(0, ddof=1)
    # Without running averages, BatchRenorm has other outputs.
    names = None if use else ("BatchNorm", "UnitizedBatchNorm")
    for layer in layers(names, use_running_average=use, update_running_average=True):
        y, found_mean, found_var = layer(jnp.asarray(x, "float32"))
        np.testing.assert_allclose(found_mean, mean, rtol=1e-5)
        np.testing.assert_allclose(found_var, var, rtol=1e-5)
        center, spread = (3, 5) if use else (x.mean(0), x.var(0))
        np.testing.assert_allclose(y, (x - center) / np.sqrt(spread + 1e-5), rtol=1e-4, atol=1e-5)


def test_groups_of_unequal_counts_weigh_by_them():
    x = np.asarray(X, np.float64)
    mask = np.arange(16) % 8 < np.where(np.arange(16) < 8, 7, 2)  # the groups have 7 and 2 samples
    parts = [x[:8][mask[:8]], x[8:][mask[8:]]]
    share = np.array([7, 2]) / 9
    mean = 0.9 * 3 + 0.1 * sum(s * p.mean(0) for s, p in zip(share, parts, strict=True))
    var = 0.9 * 5 + 0.1 * sum(s * p.var(0, ddof=1) for s, p in zip(share, parts, strict=True))
    for layer in layers(groups=2):
        _, found_mean, found_var = evaluated(layer, X, jnp.asarray(mask))
        np.testing.assert_allclose(found_mean, mean, rtol=1e-5)
        np.testing.assert_allclose(found_var, var, rtol=1e-5)


@pytest.mark.parametrize("statistic", [1, 2])
def test_running_statistics_have_no_gradient(statistic):
    for layer in layers():
        gradient = jax.jit(jax.grad(lambda x, f=layer: f(x)[statistic].sum()))(X)
        np.testing.assert_array_equal(gradient, 0)


def test_axis_index_groups_reach_the_statistics_of_both_shells():
    """Two groups of two shards get different data, so each group must have its own statistics."""
    x = jnp.concatenate([X[:8], 10 + 2 * X[8:]]).reshape(4, 4, 3)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("shards",))
    spec = jax.sharding.PartitionSpec("shards")
    for layer in layers(axis_name="shards", axis_index_groups=[[0, 1], [2, 3]]):

        def own(x, layer=layer):
            return jax.tree.map(lambda a: a[None], layer(x[0]))

        sharded = jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        _, mean, var = jax.jit(sharded)(x)
        for shard in range(4):
            seen = np.asarray(x[:2] if shard < 2 else x[2:], np.float64).reshape(-1, 3)
            np.testing.assert_allclose(mean[shard], 2.7 + 0.1 * seen.mean(0), rtol=1e-5)
            np.testing.assert_allclose(var[shard], 4.5 + 0.1 * seen.var(0, ddof=1), rtol=1e-5)
