"""Recalibrated statistics for all options of the layers, compared with NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxnorm
from jaxnorm.nnx import recalibrate
from tests.support import numpy_layers
from tests.support.all_pairs import all_pairs
from tests.support.layers import layer_classes
from tests.support.numpy_programs import evaluated

NAMES = layer_classes(jaxnorm.nnx)
FACTORS: dict[str, list[Any]] = {
    "axis": [-1, 1],
    "groups": [1, 2],
    "momentum": [0.9, 0.3],
    "correction": [None, jaxnorm.bessel],
    "running_correction": [jaxnorm.bessel, jnp.ones_like],
    "use_running_average": [False, True],
    "update_running_average": [None, False, True],
    "masked": [False, True],
}


class Pair(nnx.Module):
    """Two layers with ReLU between them, so the first layer determines the inputs of the second."""

    def __init__(self, layer, **options):
        self.first, self.second = (layer(3, rngs=nnx.Rngs(0), **options) for _ in range(2))
        self.first.scale[...] = jnp.array([2.0, -0.5, 1.5], "float32")
        self.first.bias[...] = jnp.array([1.0, -3.0, 0.2], "float32")
        for norm in (self.first, self.second):
            norm.mean[...] = jnp.array([30.0, -9.0, 4.0], "float32")
            norm.var[...] = jnp.array([5.0, 0.1, 70.0], "float32")

    def __call__(self, x, mask=None):
        return self.second(nnx.relu(self.first(x, mask=mask)), mask=mask)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_all_samples_whatever_the_options(name):
    """Batches of different sizes and spreads, each normalized by its own statistics."""
    rng = np.random.default_rng(0)
    batches = [rng.gamma(2.0, k, (2 * k, 3, 4, 3)) + k for k in (1, 3, 2)]
    masks = [rng.random(x.shape[:-1]) < 0.6 for x in batches]
    own = {"BatchRenorm": {"r_max": [3.0, 1.2]}}.get(name, {})
    for row in all_pairs(FACTORS | own):
        masked = row.pop("masked")
        options = dict(row)
        model = Pair(getattr(jaxnorm.nnx, name), **options)
        kept = masks if masked else [np.ones(x.shape[:-1], bool) for x in batches]
        whole = row["groups"] == 2  # if true, the masks have an axis of channels
        given = [
            (
                jnp.asarray(np.moveaxis(x, -1, row["axis"]), "float32"),
                jnp.asarray(np.expand_dims(m, row["axis"]) if whole else m),
            )
            for x, m in zip(batches, kept, strict=True)
        ]
        graph, state = nnx.split(model)

        def recalibrated(state, given, graph=graph, row=row):
            model = nnx.merge(graph, state)
            recalibrate(model, given, call=lambda model, batch: model(*batch))
            for norm in (model.first, model.second):
                assert {option: getattr(norm, option) for option in row} == row
            return nnx.state(model)

        nnx.update(model, evaluated(recalibrated, state, given))
        between = [middle(model, x, m, row) for x, m in zip(batches, kept, strict=True)]
        for norm, inputs in ((model.first, batches), (model.second, between)):
            seen = np.concatenate([x[m] for x, m in zip(inputs, kept, strict=True)])
            np.testing.assert_allclose(norm.mean[...], seen.mean(0), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(norm.var[...], seen.var(0), rtol=1e-3, atol=1e-5)


def middle(model, x, mask, row):
    seen = x[mask]
    var = seen.var(0)
    if row["correction"] is not None:
        var = var * len(seen) / (len(seen) - 1)
    scale, bias = (np.asarray(p[...]) for p in (model.first.scale, model.first.bias))
    return np.maximum((x - seen.mean(0)) / np.sqrt(var + 1e-5) * scale + bias, 0)


@pytest.mark.parametrize("kind", [*map(vars(jaxnorm.nnx).get, NAMES), nnx.BatchNorm])
@pytest.mark.parametrize("old", [0.0, 1e8, np.nan])
def test_the_old_statistics_do_not_matter_even_if_the_new_ones_are_tiny(kind, old):
    """The old statistics are 0, NaN, or so large that adding a variance of 10⁻⁹ changes nothing."""
    x = np.random.default_rng(3).normal(3e-5, 3e-5, (9, 3)) * [1.0, 2.0, 0.5]
    layer = kind(3, rngs=nnx.Rngs(0))
    layer.mean[...], layer.var[...] = (jnp.full(3, old, "float32") for _ in range(2))
    recalibrate(layer, [jnp.asarray(part, "float32") for part in (x[:2], x[2:])])
    np.testing.assert_allclose(layer.mean[...], x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], x.var(0), rtol=1e-4)


@pytest.mark.parametrize("kind", [*map(vars(jaxnorm.nnx).get, NAMES), nnx.BatchNorm])
def test_the_mode_that_a_model_chooses_in_its_calls_does_not_matter(kind):
    x = np.random.default_rng(4).gamma(2.0, size=(9, 3))
    own = {} if kind is nnx.BatchNorm else {"update_running_average": False}
    for options in ({"use_running_average": True}, {"use_running_average": False, **own}):
        layer = kind(3, use_running_average=None, rngs=nnx.Rngs(0))
        parts = [jnp.asarray(part, "float32") for part in (x[:4], x[4:])]
        recalibrate(layer, parts, call=lambda layer, x, options=options: layer(x, **options))
        np.testing.assert_allclose(layer.mean[...], x.mean(0), rtol=1e-5)
        np.testing.assert_allclose(layer.var[...], x.var(0), rtol=1e-5)
        assert layer.use_running_average is None


@pytest.mark.parametrize("kind", [*map(vars(jaxnorm.nnx).get, NAMES), nnx.BatchNorm])
def test_batches_without_counted_samples_change_nothing(kind):
    x = np.random.default_rng(5).gamma(2.0, size=(8, 3))
    for counted in ((), (1,), (0, 2)):
        layer = kind(3, rngs=nnx.Rngs(0))
        layer.mean[...], layer.var[...] = (jnp.full(3, old, "float32") for old in (7, 9))
        masks = [jnp.full((2, 1), part in counted) for part in range(4)]
        parts = [jnp.asarray(part, "float32") for part in np.split(x, 4)]
        batches = list(zip(parts, masks, strict=True))
        recalibrate(layer, batches, call=lambda layer, batch: layer(batch[0], mask=batch[1]))
        seen = x[np.ravel(masks)]
        expected = (seen.mean(0), seen.var(0)) if counted else (7, 9)
        for found, right in zip((layer.mean, layer.var), expected, strict=True):
            right = np.broadcast_to(right, 3)
            np.testing.assert_allclose(found[...], right, rtol=1e-5, atol=1e-6)


def test_of_a_layer_that_is_called_twice_the_last_call_counts():
    """The mask of the first call must not change the weight of the batch for the second call."""

    class Twice(nnx.Module):
        def __init__(self):
            self.norm = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))

        def __call__(self, x, mask):
            return self.norm(nnx.relu(self.norm(x, mask=mask)))

    rng = np.random.default_rng(1)
    batches = [rng.gamma(2.0, k, (n, 3)) for k, n in ((1, 12), (4, 6))]
    masks = [np.arange(12) < 3, np.arange(6) < 6]
    model, last = Twice(), []
    pairs = list(zip(batches, masks, strict=True))
    given = [(jnp.asarray(x, "float32"), jnp.asarray(m)) for x, m in pairs]
    recalibrate(model, given, call=lambda model, batch: model(*batch))
    for x, m in pairs:
        last.append(np.maximum((x - x[m].mean(0)) / np.sqrt(x[m].var(0) + 1e-5), 0))
    seen = np.concatenate(last)
    np.testing.assert_allclose(model.norm.mean[...], seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(model.norm.var[...], seen.var(0), rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("mask_axis", ["no mask", "none", "of channels"])
def test_a_mask_of_samples_counts_their_pixels(axis, mask_axis):
    """Masks have no channel axis, or a channel axis of size 1."""
    rng = np.random.default_rng(2)
    batches = [rng.gamma(2.0, k, (4, *spatial, 3)) for k, spatial in ((1, (2, 5)), (4, (1, 3)))]
    masks = np.array([[True, False, True, True], [False, False, True, False]])
    masks = masks | (mask_axis == "no mask")
    norm = jaxnorm.nnx.BatchNorm(3, axis=axis, rngs=nnx.Rngs(0))
    given = []
    for x, mask in zip(batches, masks, strict=True):
        of_pixels = np.broadcast_to(mask[:, None, None], x.shape[:-1])
        of_all = np.moveaxis(of_pixels[..., None], -1, axis)
        image = jnp.asarray(np.moveaxis(x, -1, axis), "float32")
        given.append((image, jnp.asarray(of_all if mask_axis == "of channels" else of_pixels)))
    if mask_axis == "no mask":
        recalibrate(norm, [image for image, _ in given])
    else:
        recalibrate(norm, given, call=lambda norm, batch: norm(batch[0], mask=batch[1]))
    chosen = zip(batches, masks, strict=True)
    seen = np.concatenate([x[mask].reshape(-1, 3) for x, mask in chosen])
    np.testing.assert_allclose(norm.mean[...], seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(norm.var[...], seen.var(0), rtol=1e-4)


def test_options_of_the_plan_are_those_of_the_layers():
    """Each layer option that recalibration could ignore has a factor in the tests above."""
    left_out = {"dtype", "param_dtype", "epsilon", "use_scale", "use_bias"}
    assert set(numpy_layers.COMMON) - left_out == set(FACTORS) - {"masked"}


def test_the_random_keys_of_a_model_go_on_from_batch_to_batch():
    """Equal batches get different dropout masks."""

    class Network(nnx.Module):
        def __init__(self):
            self.dropout = nnx.Dropout(0.5, deterministic=False, rngs=nnx.Rngs(3))
            self.norm = jaxnorm.nnx.BatchNorm(4, use_running_average=False, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(self.dropout(x))

    x = jnp.asarray(np.random.default_rng(5).normal(3, 2, (6, 4)), "float32")
    model, reference = Network(), Network()
    seen = np.concatenate([reference.dropout(x) for _ in range(3)])
    recalibrate(model, [x] * 3)
    np.testing.assert_allclose(model.norm.mean[...], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.norm.var[...], seen.var(0), rtol=1e-5)


LAYERS = [nnx.BatchNorm, *(getattr(jaxnorm.nnx, name) for name in layer_classes(jaxnorm.nnx))]
BATCHES = np.random.default_rng(6).gamma(2.0, size=(3, 8, 4)).astype("float32") * 3


def assert_statistics(norm, seen):
    """Assert that `norm` has the mean and variance of `seen` over the second to last axis."""
    np.testing.assert_allclose(norm.mean[...], seen.mean(-2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.var[...], seen.var(-2), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_call_in_inference_is_recalibrated_too(layer, by_name):
    """Many models have an argument `train` in their call, which is False by default."""

    class Network(nnx.Module):
        def __init__(self):
            self.norm = layer(4, rngs=nnx.Rngs(0))

        def __call__(self, x, train=False):
            if by_name:
                return self.norm(x, use_running_average=not train)
            return self.norm(x, not train)

    model = Network()
    recalibrate(model, list(BATCHES))
    assert_statistics(model.norm, BATCHES.reshape(-1, 4))


@pytest.mark.parametrize("name", layer_classes(jaxnorm.nnx))
def test_a_call_without_updates_is_recalibrated_too(name):
    norm = getattr(jaxnorm.nnx, name)(4, rngs=nnx.Rngs(0))

    def call(norm, x):
        norm(x, update_running_average=False)

    recalibrate(norm, list(BATCHES), call=call)
    assert_statistics(norm, BATCHES.reshape(-1, 4))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_subclass_whose_call_has_fewer_arguments(layer):
    class Halved(layer):
        def __call__(self, x):
            return super().__call__(x / 2)

    norm = Halved(4, rngs=nnx.Rngs(0))
    recalibrate(norm, list(BATCHES))
    assert_statistics(norm, BATCHES.reshape(-1, 4) / 2)


def stack(layer):
    """Three layers stacked as one, whose arrays have a leading axis."""

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs):
        return nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), layer(4, rngs=rngs))

    return make(nnx.Rngs(0))


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_a_scan_runs_one_after_the_other(layer):
    model: Any = stack(layer)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def call(layers, x):
        return layers(x)

    recalibrate(model, list(BATCHES), call=call)
    dense, norm = model.layers
    inputs = BATCHES
    for i in range(3):
        h = inputs @ np.asarray(dense.kernel[i]) + np.asarray(dense.bias[i])
        seen = h.reshape(-1, 4)
        np.testing.assert_allclose(norm.mean[i], seen.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(norm.var[i], seen.var(0), rtol=1e-3, atol=1e-4)
        inputs = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_an_ensemble(layer):
    model: Any = stack(layer)
    call = nnx.vmap(lambda member, x: member(x), in_axes=(0, None))
    recalibrate(model, list(BATCHES), call=call)
    dense, norm = model.layers
    kernel, bias = np.asarray(dense.kernel[...]), np.asarray(dense.bias[...])
    assert_statistics(norm, BATCHES.reshape(-1, 4) @ kernel + bias[:, None])


@pytest.mark.parametrize("layer", LAYERS)
def test_batches_over_different_numbers_of_shards(layer):
    """A batch is weighted by its samples on all shards together."""
    norm = layer(4, axis_name="shards", rngs=nnx.Rngs(0))
    x = BATCHES.reshape(24, 4)
    call = nnx.vmap(lambda norm, x: norm(x), in_axes=(None, 0), axis_name="shards")
    recalibrate(norm, [x[:16].reshape(8, 2, 4), x[16:].reshape(2, 4, 4)], call=call)
    assert_statistics(norm, x)


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_shards_have_statistics_and_counts_of_their_own(name):
    """Of four shards, the even and the odd ones are two groups, with different masks."""
    norms: Any = nnx.vmap(
        lambda _: getattr(jaxnorm.nnx, name)(
            4, axis_name="shards", axis_index_groups=[[0, 2], [1, 3]], rngs=nnx.Rngs(0)
        ),
        axis_size=4,
    )(None)
    mesh = jax.make_mesh((4,), ("shards",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("shards")
    rng = np.random.default_rng(8)
    masks = rng.random((2, 4, 6)) < np.array([[[0.9], [0.2]] * 2, [[0.3], [0.8]] * 2])
    batches = [rng.normal(k, k, (4, 6, 4)) for k in (1.0, 3.0)]

    def call(norms, batch):
        graph, state = nnx.split(norms)

        def own(state, x, mask):
            norm = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))
            norm(x[0], mask=mask[0])
            return jax.tree.map(lambda leaf: leaf[None], nnx.state(norm))

        spread = jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        nnx.update(norms, spread(state, *batch))

    given = [
        (jnp.asarray(x, "float32"), jnp.asarray(m)) for x, m in zip(batches, masks, strict=True)
    ]
    recalibrate(norms, given, call=call)
    for shard in range(4):
        group = slice(shard % 2, None, 2)
        seen = [x[group][m[group]] for x, m in zip(batches, masks, strict=True)]
        np.testing.assert_allclose(norms.mean[shard], np.concatenate(seen).mean(0), rtol=1e-4)
        np.testing.assert_allclose(norms.var[shard], np.concatenate(seen).var(0), rtol=1e-4)


def test_a_mask_of_elements_for_the_batch_norm_of_flax():
    """In Flax, a mask may select single elements, so features have different counts."""
    rng = np.random.default_rng(7)
    masks = rng.random(BATCHES.shape) < np.array([[[0.2]], [[0.5]], [[0.9]]])
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    call = lambda norm, batch: norm(batch[0], mask=batch[1])  # noqa: E731
    recalibrate(norm, list(zip(BATCHES, masks, strict=True)), call=call)
    for j in range(4):
        seen = BATCHES[..., j][masks[..., j]]
        np.testing.assert_allclose(norm.mean[j], seen.mean(), rtol=1e-4)
        np.testing.assert_allclose(norm.var[j], seen.var(), rtol=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_model_that_records_its_activations(layer):
    """A call of the model adds a variable, which recalibration must remove after each batch."""

    class Recording(nnx.Module):
        def __init__(self):
            self.norm = layer(4, rngs=nnx.Rngs(0))
            self.counts = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.counts[...] += 1
            self.last = nnx.Intermediate(x)
            return self.norm(x)

    model = Recording()
    before = jax.tree.structure(nnx.state(model))
    recalibrate(model, list(BATCHES))
    assert_statistics(model.norm, BATCHES.reshape(-1, 4))
    assert jax.tree.structure(nnx.state(model)) == before
    assert model.counts[...] == 0


def test_features_may_be_sharded_over_an_explicit_mesh():
    x = np.random.default_rng(0).normal(3, 2, (10, 8)).astype(np.float32)
    norm = jaxnorm.nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        sharding = jax.NamedSharding(mesh, jax.P(None, "data"))
        recalibrate(norm, [jax.device_put(part, sharding) for part in (x[:6], x[6:])])
    np.testing.assert_allclose(norm.mean[...], x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(norm.var[...], x.var(0), rtol=1e-5)


@pytest.mark.parametrize("kind", [*map(vars(jaxnorm.nnx).get, NAMES), nnx.BatchNorm])
def test_arrays_may_have_been_pruned(kind):
    """The arrays have three channels, although `num_features` is still 5."""
    norm, x = kind(5, rngs=nnx.Rngs(0)), np.random.default_rng(0).normal(3, 2, (6, 3))
    for _, variable in nnx.iter_graph(norm):
        if isinstance(variable, nnx.Variable):
            variable.set_value(variable.get_value()[:3])
    recalibrate(norm, [jnp.asarray(x, "float32")])
    np.testing.assert_allclose(norm.mean[...], x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(norm.var[...], x.var(0), rtol=1e-5)
