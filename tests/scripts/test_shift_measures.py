"""Measurements of the shift after every epoch, for made-up outputs."""

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.measures import shift
from experiments.recipes import Recipe
from experiments.training.step import State

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")

RNG = np.random.default_rng(0)
X, PROBE = (RNG.normal(3, 2, (n, 2)).astype(np.float32) for n in (11, 5))
RECIPE = Recipe(batch_size=4, epochs=2)


def bent(x, by):
    """A convex function of `x`, whose values have a skewness and kurtosis that depend on `by`."""
    return jnp.exp(by * x)


def made_up(monkeypatch):
    """Network (w, r) has the outputs exp((w + r) x), or exp(w (x + m)) in a batch of mean m.

    With statistics of the whole training set, r is 0. Further batches multiply the running average
    r by five.
    """
    monkeypatch.setattr(shift, "MOMENT_BATCHES", 2)
    monkeypatch.setattr(shift, "CHUNK", 3)
    seen: dict[str, list[Any]] = {"whole": [], "more": []}

    def outputs(network, x):
        assert len(x) <= len(PROBE)  # images are evaluated in chunks
        return {name: bent(x, network[0] + network[1]) for name in shift.LAYERS}

    def in_batches(network, x):
        assert len(x) % 4 == 0
        parts = jnp.split(x, len(x) // 4)
        shifted = [part + part.mean(0, keepdims=True) for part in parts]
        return {name: bent(jnp.concatenate(shifted), network[0]) for name in shift.LAYERS}

    def whole_set(network, x):
        seen["whole"].append(len(x))
        return network[0], 0.0

    def more_batches(network, x, key):
        seen["more"].append(np.asarray(jax.random.key_data(key)).tolist())
        return network[0], 5 * network[1]

    trainer: Any = SimpleNamespace(recipe=RECIPE)
    program: Any = shift.Program(trainer, outputs, in_batches, whole_set, more_batches)
    return program, seen


def state_of(w, r):
    return State(w, r, None, jnp.int32(0), jnp.float32(0))


def moved(before, after):
    """By SciPy: the mean over units of the absolute change of skewness, and of kurtosis."""
    kinds = {"skewness": stats.skew, "kurtosis": partial(stats.kurtosis, fisher=False)}
    return {
        name: np.mean(np.abs(of(np.asarray(after, float)) - of(np.asarray(before, float))))
        for name, of in kinds.items()
    }


def close(found, expected):
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-3), name


def test_every_kind_of_statistics_is_measured_since_the_last_epoch(monkeypatch):
    program, seen = made_up(monkeypatch)
    x, probe = jnp.asarray(X), jnp.asarray(PROBE)
    follow = shift.Follower(program, x, probe, exact=5)
    keys = [jax.random.key(seed) for seed in (1, 2)]
    (w0, r0), (w1, r1) = (0.1, 0.05), (0.3, -0.02)
    assert follow.update(state_of(w0, r0), keys[0]) == {}
    found = follow.update(state_of(w1, r1), keys[1])
    assert seen["whole"] == [11, 11]
    assert seen["more"] == [jax.random.key_data(key).tolist() for key in keys]
    few = x[:8]  # two batches of four
    batched = lambda w, x: program.in_batches((w, 0), x)[shift.LAYERS[-1]]  # noqa: E731
    close(found["movement"]["whole set"], moved(bent(x, w0), bent(x, w1)))
    close(found["movement"]["running"], moved(bent(few, w0 + r0), bent(few, w1 + r1)))
    close(found["movement"]["batch"], moved(batched(w0, few), batched(w1, few)))
    close(found["floor"]["running"], moved(bent(few, w1 + r1), bent(few, w1 + 5 * r1)))
    order = jax.random.permutation(keys[1], 8)
    close(found["floor"]["batch"], moved(batched(w1, few), batched(w1, few[order])))
    assert found["floor"].keys() == {"running", "batch"}
    expected = stats.kurtosis(np.asarray(bent(x, w1), float), fisher=False)
    np.testing.assert_allclose(found["moments"]["kurtosis"], expected, rtol=2e-3)


def test_a_shift_is_of_the_joint_outputs_for_the_probe(monkeypatch):
    """The expected distance is the minimum over all pairings of the outputs for five images."""
    program, _ = made_up(monkeypatch)
    follow = shift.Follower(program, jnp.asarray(X), jnp.asarray(PROBE), exact=5)
    for w, r in ((0.2, 0.1), (0.1, 0.05), (0.3, -0.02)):  # the last two states are compared
        found: Any = follow.update(state_of(w, r), jax.random.key(0))
    close(found["movement"]["whole set"], moved(bent(X, 0.1), bent(X, 0.3)))

    def distance(a, b):
        a, b = np.asarray(a, float), np.asarray(b, float)
        orders = itertools.permutations(range(len(a)))
        return min(np.linalg.norm(a - b[list(p)], axis=1).mean() for p in orders)

    for name in shift.LAYERS:
        whole, running, batch = (found["shift"][kind][name] for kind in shift.KINDS)
        assert whole["exact"] == pytest.approx(distance(bent(PROBE, 0.1), bent(PROBE, 0.3)), 1e-3)
        assert whole.keys() == {"exact", "lower", "upper", "baseline"}
        exact = distance(bent(PROBE, 0.15), bent(PROBE, 0.28))
        assert running["exact"] == pytest.approx(exact, rel=1e-3)
        floor = distance(bent(PROBE, 0.28), bent(PROBE, 0.3 - 5 * 0.02))
        assert running["floor"] == pytest.approx(floor, rel=1e-3)
        assert batch.keys() == running.keys() == {"exact", "floor"}
        few = jnp.asarray(PROBE[:4])  # images beyond the last full batch are left out
        own = [program.in_batches((w, 0), few)[name] for w in (0.1, 0.3)]
        assert batch["exact"] == pytest.approx(distance(*own), rel=1e-3)


def test_outputs_in_another_order_of_batches_stand_in_the_order_of_the_images(monkeypatch):
    program, _ = made_up(monkeypatch)
    follow = shift.Follower(program, jnp.asarray(X), jnp.asarray(PROBE), exact=5)
    key = jax.random.key(6)
    found = follow._in_batches(((0.2, 0.0), key), jnp.asarray(X))[shift.LAYERS[0]]
    x, order = X[:8], np.asarray(jax.random.permutation(key, 8))
    assert (order[order] != np.arange(8)).any()  # the permutation is not its own inverse
    expected = np.empty_like(x)
    for rows in (order[:4], order[4:]):
        expected[rows] = np.exp(0.2 * (x[rows] + x[rows].mean(0)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_further_batches_are_whole_and_see_each_image_at_most_once(monkeypatch):
    """The expected running statistics of the first norm are averages with momentum 0.9."""
    monkeypatch.setattr(shift, "FLOOR_BATCHES", 2)
    rng = np.random.default_rng(1)
    x = rng.normal(3, 2, (30, 4, 4, 1)).astype(np.float32)
    y = np.arange(30, dtype=np.int32) % 3
    images = shift.Images("made", "", 3, x, y, x[:8], y[:8])
    recipe = Recipe(model="mlp", batch_size=8, running_momentum=0.9)
    program = shift.program(recipe, images)
    state = program.trainer.init_state((0,))
    network = state.params, state.statistics
    key = jax.random.key(3)
    _, after = program.more_batches(network, jnp.asarray(x), key)
    kernel, bias = (np.asarray(state.params["layers"][0][k][...]) for k in ("kernel", "bias"))
    h = x.reshape(30, 16) @ kernel + bias
    rows = np.asarray(jax.random.permutation(key, 30))
    mean, var = np.zeros(h.shape[1]), np.ones(h.shape[1])
    for batch in (h[rows[:8]], h[rows[8:16]]):
        mean = 0.9 * mean + 0.1 * batch.mean(0)
        var = 0.9 * var + 0.1 * batch.var(0, ddof=1)
    np.testing.assert_allclose(after["norms"][0]["mean"][...], mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after["norms"][0]["var"][...], var, rtol=1e-3, atol=1e-4)


def test_a_line_of_an_epoch_has_the_mean_loss_and_a_key_of_its_step(monkeypatch):
    updates: list[Any] = []

    class Follower:
        def __init__(self, program, x, probe, exact):
            assert (x.shape, probe.shape, exact) == ((11, 2), (3, 2), 7)

        def update(self, state, key):
            updates.append((state.params, np.asarray(jax.random.key_data(key)).tolist()))
            return {"updates": len(updates)}

    states = [SimpleNamespace(params=p, loss=loss) for p, loss in (("a", 6.0), ("b", 3.0))]
    trainer = SimpleNamespace(
        steps=3,
        init_state=lambda seeds: SimpleNamespace(params=seeds, loss=0.0),
        evaluate=lambda state: [{"accuracy": {"a": 0.25, "b": 0.5}[state.params]}],
    )
    chunks = [SimpleNamespace(state=s, step=3 * i + 3) for i, s in enumerate(states)]
    monkeypatch.setattr(shift, "PROBE", 3)
    monkeypatch.setattr(shift, "Follower", Follower)
    monkeypatch.setattr(shift.chunks, "epochs", lambda trainer, state, seeds: iter(chunks))
    images: Any = SimpleNamespace(x_train=X, x_test=PROBE)
    found = list(shift.train(SimpleNamespace(trainer=trainer), images, 7, 5))  # pyright: ignore[reportArgumentType]
    assert found == [
        {"loss": 2.0, "accuracy": 0.25, "updates": 2},
        {"loss": 1.0, "accuracy": 0.5, "updates": 3},
    ]
    assert [params for params, _ in updates] == [(5,), "a", "b"]
    keys = [str(key) for _, key in updates]
    assert len(set(keys)) == 3
    assert keys[0] == str(jax.random.key_data(jax.random.key(5)).tolist())


def test_columns_have_a_list_for_each_number_with_four_digits():
    lines = [{"a": 0.123456, "b": {"c": None}}, {"a": 1234.56, "b": {"c": 2e-7 / 3}}]
    assert shift.columns(lines) == {"a": [0.1235, 1235.0], "b": {"c": [None, 6.667e-8]}}


def test_a_moment_that_is_not_finite_is_no_movement():
    before = {"skewness": np.array([1.0, np.nan, 3.0]), "kurtosis": np.array([2.0, 2.0, 9.0])}
    after = {"skewness": np.array([2.0, 5.0, 0.0]), "kurtosis": np.array([1.0, 4.0, 9.0])}
    assert shift._movement(before, after) == {"skewness": 2.0, "kurtosis": 1.0}


def test_images_come_in_chunks_and_the_last_is_smaller():
    parts = [part.tolist() for part in shift.image_chunks(jnp.arange(7), 3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6]]


def test_runs_differ_in_their_recipes_and_networks_of_one_seed_in_nothing_else(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(shift, "program", lambda recipe, images: recipe)
    monkeypatch.setattr(
        shift,
        "read_or_train",
        lambda make, recipe, path, update: asked.append((recipe, path.name)) or [{"moments": 1.0}],
    )
    out: Any = shift.Path("out")
    images: Any = None
    recipe = shift.dense_recipe("mnist", 8, 16)
    assert (recipe.momentum, recipe.weight_decay) == (0, 0)
    found = shift.train_all(
        recipe, images, ("drops", "constant"), ("ReLU first", "norm first"), 2, 9, out, print
    )
    assert len(found) == len({path for _, path in asked}) == 16
    assert [run["seed"] for run in found] == [0] * 8 + [1] * 8  # seeds are the outer loop
    for run, (own, _) in zip(found, asked, strict=True):
        model = {"ReLU first": "mlp_relu_first", "norm first": "mlp"}[run["order"]]
        drops = {"drops": recipe.drops, "constant": ()}[run["schedule"]]
        expected = shift.replace(
            recipe, model=model, drops=drops, normalization=run["normalization"]
        )
        assert own == expected
        # The page plots the moments of one order and one seed, so only these moments are kept.
        assert ("moments" in run) == (run["seed"] == 0 and run["order"] == "ReLU first")
