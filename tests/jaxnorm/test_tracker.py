"""Shift and moments of layers during training: measurements, streams and errors."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import jaxnorm
from jaxnorm.nnx import layer_outputs
from jaxnorm.shift import Tracker, emd, emd_1d, layer_shift, stream_moments


@pytest.fixture
def network():
    return jaxnorm.models.MLP(inputs=6, widths=(5, 4), classes=3, rngs=nnx.Rngs(0))


def test_outputs_of_named_layers_are_those_of_the_network(network, key):
    x = jax.random.normal(key, (7, 6), jnp.float32)
    frozen = nnx.view(network, use_running_average=True)
    found = jax.jit(lambda x: layer_outputs(frozen, ["norms.0", "norms.1", "layers.0"], x))(x)
    np.testing.assert_allclose(found["norms.1"], frozen.last_normalized(x), rtol=1e-5)
    np.testing.assert_allclose(found["layers.0"], frozen.layers[0](x), rtol=1e-5)
    assert found["norms.0"].shape == (7, 5)


def test_the_output_of_a_layer_is_that_of_its_call_and_of_no_other_method(network):
    x = jnp.ones((2, 6), jnp.float32)
    found = layer_outputs(nnx.Sequential(network, nnx.relu), ["layers.0"], x)
    np.testing.assert_array_equal(found["layers.0"], network(x))


def test_layers_that_are_not_called_are_named(network):
    with pytest.raises(
        ValueError, match=r"'norms.7' must be called once; it was called 0 times\. Called"
    ):
        layer_outputs(network, ["norms.7"], jnp.ones((2, 6), jnp.float32))


class Doubled(nnx.Module):
    def __call__(self, x):
        return 2 * x


class Repeated(nnx.Module):
    """A layer that is called `times` times, and a layer that is called once."""

    def __init__(self, times):
        self.layer, self.last, self.times = Doubled(), Doubled(), times

    def __call__(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return self.last(x)


class Counted(nnx.Module):
    """A network in training, with running statistics, random keys and a count of its calls."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = jaxnorm.nnx.UnitizedBatchNorm(3, rngs=rngs)
        self.plain = jaxnorm.nnx.BatchNorm(3, rngs=rngs)
        self.rngs, self.calls = nnx.Rngs(1), nnx.BatchStat(jnp.zeros(()))
        self.python_calls = 0

    def __call__(self, x):
        self.calls[...] += 1
        self.python_calls += 1
        self.rngs.noise()
        return self.norm(self.linear(x))


READERS = {
    "layer_outputs": lambda model, x: layer_outputs(model, ["linear", "norm"], x),
    "fix_pixels": lambda model, x: jaxnorm.nnx.fix_pixels(model, x)(x),
    "norm_parameters": lambda model, x: jaxnorm.nnx.norm_parameters(model),
    "fold": lambda model, x: jaxnorm.nnx.fold(model.linear, model.plain),
}


def numbers(model):
    """The graph of the model, and copies of the values of its variables."""
    graph, state = nnx.split(model)
    state = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        state,
    )
    return graph, jax.tree.map(np.array, nnx.to_pure_dict(state))


@pytest.mark.parametrize("reader", READERS)
def test_a_model_that_is_read_does_not_change(reader, key):
    model, x = Counted(), jax.random.normal(key, (4, 2, 3), "float32")
    graph, before = numbers(model)
    READERS[reader](model, x)
    graph_then, after = numbers(model)
    assert graph_then == graph
    assert model.python_calls == 0
    jax.tree.map(np.testing.assert_array_equal, after, before)
    model(x)
    used = numbers(model)[1]
    assert used["calls"] == used["rngs"]["default"]["count"] == 1
    assert used["norm"]["mean"].any()


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_layer_that_is_not_called_once_is_refused(times):
    model, x = Repeated(times), jnp.ones((3, 2))
    found = layer_outputs(model, ["last"], x)
    np.testing.assert_array_equal(found["last"], np.full((3, 2), 2 ** (times + 1)))
    if times == 1:
        assert (layer_outputs(model, ["layer"], x)["layer"] == 2).all()
        return
    message = f"'layer' must be called once; it was called {times} times"
    with pytest.raises(ValueError, match=message):
        layer_outputs(model, ["last", "layer"], x)


def test_a_shift_lies_between_its_bounds_and_is_exact(key):
    before, after = jax.random.normal(key, (2, 30, 2, 2, 3))
    found = layer_shift(before, after, exact=20)
    assert found.lower < found.exact <= found.upper
    np.testing.assert_allclose(found.exact, emd(before[:20], after[:20]), rtol=1e-12)
    np.testing.assert_allclose(found.baseline, emd(after[:10], after[10:20]), rtol=1e-12)
    pixels = (part.reshape(-1, 3) for part in (before, after))
    np.testing.assert_allclose(found.channels, emd_1d(*pixels), rtol=1e-12)


def test_a_mere_displacement_is_all_four(key):
    x = jax.random.normal(key, (10, 4))
    found = layer_shift(x, x + 3.0)
    for distance in (found.exact, found.lower, found.upper):
        np.testing.assert_allclose(distance, 6, rtol=1e-12)
    np.testing.assert_allclose(found.channels, 3, rtol=1e-12)


@pytest.mark.parametrize("exact", [4, 5])
def test_bounds_are_of_the_first_samples_and_channels_of_all(exact):
    """The baseline compares halves of equal size, so it leaves out the last of five samples."""
    before, after = np.random.default_rng(0).normal([3.0, -1.0], 2, (2, 6, 2))
    found = layer_shift(jnp.asarray(before), jnp.asarray(after), exact=exact)
    apart = after[:exact] - before[:exact]
    np.testing.assert_allclose(found.lower, np.linalg.norm(apart.mean(0)), rtol=1e-12)
    np.testing.assert_allclose(found.upper, np.linalg.norm(apart, axis=1).mean(), rtol=1e-12)
    halves = [[np.linalg.norm(a - b) for b in after[2:4]] for a in after[:2]]
    pairings = (halves[0][0] + halves[1][1], halves[0][1] + halves[1][0])
    np.testing.assert_allclose(found.baseline, min(pairings) / 2, rtol=1e-12)
    ordered = np.abs(np.sort(after, 0) - np.sort(before, 0)).mean(0)
    np.testing.assert_allclose(found.channels, ordered, rtol=1e-12)


def test_the_means_of_half_precision_outputs_are_not_rounded():
    """In bfloat16, the means 3 and 3.0054 are equal, and the lower bound would be 0."""
    x = np.full((64, 3), 3.0)
    y = np.where(np.arange(64)[:, None] % 3 == 0, 3.015625, x)
    found = layer_shift(jnp.asarray(x, "bfloat16"), jnp.asarray(y, "bfloat16"))
    np.testing.assert_allclose(found.lower, 3**0.5 * 22 / 64**2, rtol=1e-6)
    np.testing.assert_allclose(found.exact, found.lower, rtol=1e-6)


def test_too_few_samples_to_compare_are_refused():
    with pytest.raises(ValueError, match="exact must be at least 2 samples; got 1"):
        layer_shift(jnp.ones((4, 2)), jnp.ones((4, 2)), exact=1)


def test_one_sample_has_a_shift_but_no_baseline():
    before, after = jnp.array([[3.0, 5.0]]), jnp.array([[6.0, 1.0]])
    found = layer_shift(before, after, exact=2)
    assert (found.exact, found.lower, found.upper) == (5, 5, 5)
    assert np.isnan(found.baseline)
    assert found.channels.tolist() == [3, 4]


@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("a", "ab"), ("ab", "a")])
def test_a_tracker_refuses_other_layers_than_before(before, after, key):
    tracker = Tracker(lambda names, x: dict.fromkeys(names, x), jax.random.normal(key, (6, 2)))
    tracker.update(before)
    message = "the same layers at each call; got {} and {}"
    for names, options in ((after, {}), (before, {"frozen": after})):
        seen = (after, before) if options else (before, after)
        with pytest.raises(ValueError, match=re.escape(message.format(*map(list, seen)))):
            tracker.update(names, **options)
    assert tracker.update(before)["a"]["shift"]["exact"] == 0


def test_streamed_moments_are_those_of_the_whole(key):
    x = jax.random.normal(key, (23, 3, 2)) ** 3 + 5
    found = stream_moments(lambda z: {"cubes": z}, (x[i : i + 5] for i in range(0, 23, 5)))
    for part, expected in zip(found["cubes"], jaxnorm.moments(x, axis=(0, 1)), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-9)


def test_streamed_moments_count_the_pixels_of_images_of_different_sizes():
    """The batches are dictionaries; the second layer sees only every other pixel of a column."""
    rng = np.random.default_rng(0)
    shapes = [(2, 8, 4, 3), (5, 2, 2, 3), (1, 4, 4, 3)]
    images = [rng.gamma(k + 1.0, size=shape) for k, shape in enumerate(shapes)]

    def outputs(batch):
        return {"all": batch["image"], "half": batch["image"][:, ::2]}

    given = [{"image": jnp.asarray(image), "label": jnp.zeros(9)} for image in images]
    found = stream_moments(outputs, given)
    for name, step in (("all", 1), ("half", 2)):
        pixels = np.concatenate([image[:, ::step].reshape(-1, 3) for image in images])
        np.testing.assert_allclose(found[name].mean, pixels.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found[name].var, pixels.var(0), rtol=1e-9)
        np.testing.assert_allclose(found[name].kurtosis, stats.kurtosis(pixels) + 3, rtol=1e-9)


def test_a_stream_never_holds_two_batches():
    alive = []

    def batches():
        for i in range(4):
            assert sum(not batch.is_deleted() for batch in alive) == 0
            batch = jnp.full((2, 1), float(i))
            alive.append(batch)
            yield batch
            batch.delete()

    stream_moments(lambda z: {"copy": z + 0}, batches())
    assert len(alive) == 4


def test_a_stream_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batches must hold at least one batch; got none"):
        stream_moments(lambda z: {"x": z}, [])


def test_a_tracker_says_how_far_since_the_last_call(key):
    probe = jax.random.normal(key, (12, 3))
    tracker = Tracker(lambda scale, x: {"a": scale * x, "b": x[:, :1]}, probe, exact=8)
    first, second = tracker.update(1.0), tracker.update(3.0)
    two_updates = tracker.seconds
    assert first["a"]["shift"] is None
    expected = layer_shift(probe, 3 * probe, exact=8)
    np.testing.assert_allclose(second["a"]["shift"]["exact"], expected.exact, rtol=1e-12)
    assert second["b"]["shift"]["upper"] == 0
    np.testing.assert_allclose(second["a"]["moments"]["var"], 9 * probe.var(0), rtol=1e-9)
    assert json.loads(json.dumps(second)) == second
    third = tracker.update(4.0)
    expected = layer_shift(3 * probe, 4 * probe, exact=8)
    np.testing.assert_allclose(third["a"]["shift"]["exact"], expected.exact, rtol=1e-12)
    assert tracker.seconds > two_updates > 0


def test_a_tracker_measures_as_many_samples_as_it_is_told_since_its_last_call():
    """The first two of the four samples are always 0."""
    tracker = Tracker(lambda state, x: {"a": state * x}, jnp.array([[0.0], [0], [1], [1]]), exact=2)
    tracker.update(0.0)
    seconds = 0.0
    for state, moved in ((1.0, 0.5), (4.0, 1.5)):
        found = tracker.update(state)["a"]["shift"]
        assert (found["exact"], found["upper"], found["channels"]) == (0, 0, [moved])
        assert tracker.seconds > seconds  # the first update compiles, so it takes the longest
        seconds = tracker.seconds


def test_the_floor_is_the_distance_of_the_same_weights_under_other_statistics(key):
    x = jax.random.normal(key, (20, 3))
    tracker = Tracker(lambda state, x: {"a": x + state}, x)
    assert tracker.update(0.0)["a"]["floor"] is None
    found = tracker.update(1.0, frozen=1.5)["a"]
    np.testing.assert_allclose(found["shift"]["exact"], 3**0.5, rtol=1e-12)
    np.testing.assert_allclose(found["floor"], 0.5 * 3**0.5, rtol=1e-12)
    rolled = Tracker(lambda state, x: {"a": jnp.roll(x, state, 0)}, x)
    assert rolled.update(0, frozen=3)["a"]["floor"] < 1e-12  # only the order of the outputs differs
    twice = Tracker(lambda state, x: {"a": state * jnp.asarray([[-1.0], [1.0]])}, x)
    assert twice.update(1.0, frozen=3.0)["a"]["floor"] == 2  # the outputs change from ±1 to ±3


@pytest.mark.parametrize("frozen", [None, 3.0])
def test_the_shift_is_between_states_whatever_the_frozen_states_are(frozen):
    tracker = Tracker(lambda scale, x: {"a": scale * x}, jnp.array([[1.0], [-1.0]]))
    steps = [tracker.update(scale, frozen=frozen)["a"] for scale in (1.0, 2.0, 5.0)]
    assert steps[0]["shift"] is None
    assert [step["shift"]["exact"] for step in steps[1:]] == [1, 3]
    floors = [None] * 3 if frozen is None else [2, 1, 2]
    assert [step["floor"] for step in steps] == floors


@pytest.mark.parametrize("activation_first", [False, True])
def test_the_dense_network_normalizes_before_or_after_the_relu(activation_first, key):
    model: Any = jaxnorm.models.MLP(
        inputs=6, widths=(5, 4), classes=3, activation_first=activation_first, rngs=nnx.Rngs(0)
    )
    x = h = np.asarray(jax.random.normal(key, (7, 6), jnp.float32))
    last = h
    for dense, norm in zip(model.layers, model.norms, strict=True):
        h = h @ np.asarray(dense.kernel[...]) + np.asarray(dense.bias[...])
        h = np.maximum(h, 0) if activation_first else h
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + norm.epsilon)
        last, h = h, h if activation_first else np.maximum(h, 0)
    np.testing.assert_allclose(model.last_normalized(jnp.asarray(x)), last, rtol=1e-3, atol=1e-5)
    expected = h @ np.asarray(model.head.kernel[...]) + np.asarray(model.head.bias[...])
    np.testing.assert_allclose(model(jnp.asarray(x)), expected, rtol=1e-3, atol=1e-5)
