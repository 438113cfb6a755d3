"""The experiment on pairs with a known distance, at a small size."""

import json
import math
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import shift_estimators
from experiments.cli import InputError
from experiments.measures import shift_estimators as measures
from tests.support.small_runs import random_images
from tools.results import FOLDER


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Keep the MLP at its size in the paper, because the test reads one of its layers by name."""


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_every_estimate_is_compared_with_the_distance(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measures, "TRAIN", 40)
    monkeypatch.setattr(measures, "TEST", 30)
    cases = [case for case in measures.cases() if case.name.startswith(("layer", "unb"))]
    monkeypatch.setattr(measures, "cases", lambda: cases)
    shift_estimators.main(seeds=2, steps=10, out=tmp_path / "numbers.json")
    example, layer = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))["pairs"]
    assert example["distance"] == 6.25
    for value, exact in zip(
        layer["estimates"]["lower bound"]["values"],
        layer["estimates"]["exact"]["values"],
        strict=True,
    ):
        assert 0 < value < exact
    assert layer["estimates"]["exact"]["bias"] == 0
    assert abs(layer["estimates"]["Algorithm 3"]["values"][0]) < 1
    assert "unbounded example" in capsys.readouterr().out


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--seeds must lie in \[2, 10000\]; got 1"):
        shift_estimators.main(seeds=1, out=tmp_path / "x.json")


@pytest.fixture
def critics(monkeypatch):
    """Let fakes for slices and both critics return known multiples of the distance of the means."""

    def critic(factor):
        def estimate(key, x_train, y_train, x_test, y_test, *, steps):
            assert (steps, len(x_train), len(y_train)) == (12, 6, 6)
            keys.append(key)
            return factor * moved(x_test, y_test) + 0 * x_train.sum()

        return estimate

    def sliced(key, x, y):
        """The mean projection, over directions in a plane, of a shift along one axis."""
        return Sliced(2 / math.pi * moved(x, y))

    keys: list[Any] = []
    monkeypatch.setattr(measures, "TRAIN", 6)
    monkeypatch.setattr(measures, "TEST", 5)
    monkeypatch.setattr(measures, "emd_sliced", sliced)
    monkeypatch.setattr(measures, "emd_lower_bound", critic(0.5))
    monkeypatch.setattr(measures, "emd_critic", critic(0.125))
    return keys


class Sliced(NamedTuple):
    distance: Any


def moved(x, y):
    return jnp.linalg.norm(y.mean(0) - x.mean(0))


def shifted(key, n):
    """Two samples of n points in a plane; the distance of their means depends on the key."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    sizes.append(n)
    x = rng.normal(size=(n, 2))
    return jnp.asarray(x), jnp.asarray(x + np.array([2 + rng.uniform(), 0]))


sizes: list[int] = []


@pytest.mark.parametrize("stated", [None, 3.0])
def test_errors_are_relative_to_the_distance_that_is_known(critics, stated):
    sizes.clear()
    found = measures.measure(measures.Case("made up", shifted, stated), 4, 12)
    assert sizes == 4 * [6] + 4 * [5]
    assert found["name"] == "made up"
    values = {name: np.array(e["values"]) for name, e in found["estimates"].items()}
    assert list(values) == ["exact", "slices", "lower bound", "Algorithm 3"]
    exact = values["exact"]
    assert len(set(exact.tolist())) == 4  # every seed has its own distance
    assert ((exact > 2) & (exact < 3)).all()
    # All points have the same shift, so each estimate is a multiple of the distance.
    np.testing.assert_allclose(values["slices"], exact, rtol=1e-6)
    np.testing.assert_allclose(values["lower bound"], exact / 2, rtol=1e-6)
    np.testing.assert_allclose(values["Algorithm 3"], exact / 8, rtol=1e-6)
    truth = exact if stated is None else np.full(4, stated)
    np.testing.assert_allclose(found["distance"], truth.mean())
    for name, estimate in found["estimates"].items():
        errors = values[name] / truth - 1
        np.testing.assert_allclose(estimate["bias"], errors.mean(), atol=1e-12)
        np.testing.assert_allclose(estimate["spread"], errors.std(ddof=1), atol=1e-12)


def test_samples_slices_and_critics_have_keys_of_their_own(critics, monkeypatch):
    drawn = []

    def draw(key, n):
        drawn.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return jnp.ones((n, 2)), jnp.zeros((n, 2))

    def uniform(key, *_, **__):
        return jax.random.uniform(key)

    monkeypatch.setattr(measures, "emd_sliced", lambda *given: Sliced(uniform(*given)))
    for name in ("emd_lower_bound", "emd_critic"):
        monkeypatch.setattr(measures, name, uniform)
    found = measures.measure(measures.Case("made up", draw, 1.0), 3, 12)["estimates"]
    assert len(set(drawn)) == 2 * 3  # each seed draws a training sample and a test sample
    slices = np.array(found["slices"]["values"]) * 2 / math.pi
    numbers = [*slices, *found["lower bound"]["values"]]
    assert len({round(number, 5) for number in numbers}) == 2 * 3


def test_pairs_are_drawn_as_they_are_named(monkeypatch):
    monkeypatch.setattr(measures, "real_layer", lambda: shifted)
    cases = list(measures.cases())
    *known, layer = cases
    assert layer == measures.Case("layer of 8 units, one epoch", shifted, None)
    committed = json.loads((FOLDER / "shift" / "estimators.json").read_text())
    assert [case.name for case in cases] == [pair["name"] for pair in committed["pairs"]]
    assert len({case.name for case in cases}) == 12 + 2 + 1 + 1
    for case in known:
        count = 200 if "d = 512" in case.name else 3000
        x, y = map(np.asarray, case.draw(jax.random.key(1), count))
        assert x.shape == y.shape
        if not case.name.startswith("Gaussians"):
            # Only this case is not Gaussian. Its samples are uniform on [5, 10] and on [0, 2.5].
            assert (float(x.min()) > 5, float(x.max()) < 10) == (True, True)
            assert (float(y.min()) > 0, float(y.max()) < 2.5) == (True, True)
            assert case.distance == 7.5 - 1.25
            continue
        dims = int(case.name.split(", ")[1].removeprefix("d = "))
        assert x.shape == (count, dims)
        scale = 2.0 if case.name.endswith("scales 1 and 2") else 1.0
        shift = 0.0 if scale == 2 else float(case.name.split()[-1])
        error = 5 / count**0.5
        assert abs(float(x.mean())) < error / dims**0.5
        assert abs(float(x.std()) - 1) < error / dims**0.5
        centre = shift / dims**0.5  # each coordinate is shifted by this number
        assert abs(float(y.mean()) - centre) < scale * error / dims**0.5
        assert abs(float((y - centre).std()) - scale) < scale * error / dims**0.5
        if scale == 2:
            length = np.linalg.norm(x, axis=1).mean()  # the distance between N(0, I) and N(0, 4 I)
            assert case.distance == pytest.approx(length, abs=error)
        else:
            assert case.distance == shift


def test_pairs_are_the_stated_functions_of_normal_and_uniform_draws(monkeypatch):
    """The distances are a length of a shift, a mean norm, and the distance of two intervals."""
    draws = np.random.default_rng(0).normal(3, 1, 40_000)

    def draw(key, shape):
        assert key == "key"
        return draws[: math.prod(shape)].reshape(shape)

    monkeypatch.setattr(measures, "real_layer", lambda: shifted)
    monkeypatch.setattr(measures.jax.random, "normal", draw)
    monkeypatch.setattr(measures.jax.random, "uniform", lambda *given: draw(*given) / 9)
    *known, example, layer = measures.cases()
    assert layer == measures.Case("layer of 8 units, one epoch", shifted, None)
    expected = [
        (f"Gaussians, d = {dims}, shift {shift:g}", dims, 1.0, shift, shift)
        for dims in (1, 8, 64, 512)
        for shift in (0.5, 2.0, 8.0)
    ]
    # The mean norms of Gaussian vectors are √(π/2) in a plane, and 7.9688 in 64 dimensions.
    means = {2: math.sqrt(math.pi / 2), 64: scipy.stats.chi(64).mean()}
    expected += [
        (f"Gaussians, d = {dims}, scales 1 and 2", dims, 2.0, 0.0, mean)
        for dims, mean in means.items()
    ]
    for case, (name, dims, scale, shift, distance) in zip(known, expected, strict=True):
        assert case.name == name
        assert case.distance == pytest.approx(distance)
        x, y = case.draw(cast("Any", "key"), 7)
        np.testing.assert_array_equal(x, draws[: 7 * dims].reshape(7, dims))
        moved = np.full(dims, shift / dims**0.5)
        assert np.linalg.norm(moved) == pytest.approx(shift)
        second = draws[7 * dims : 14 * dims].reshape(7, dims)
        np.testing.assert_allclose(y, scale * second + moved)
    assert (example.name, example.distance) == ("unbounded example, d = 1", 7.5 - 1.25)
    x, y = map(np.ravel, example.draw(cast("Any", "key"), 9))
    np.testing.assert_allclose(x, 5 + 5 * draws[:9] / 9)
    np.testing.assert_allclose(y, 2.5 * draws[9:18] / 9)


def test_a_real_layer_is_drawn_before_and_after_its_last_epoch(monkeypatch):
    images, asked = random_images(), {}

    def outputs_of(recipe, data):
        asked["recipe"] = recipe
        last = measures.LAYERS[-1]
        return lambda network, x: {"other": x, last: sum(network) + x.reshape(len(x), -1)}

    def epochs(trainer, state, seeds):
        assert (trainer.recipe, state, seeds) == (asked["recipe"], 100, (0,))
        for state in (0, 1000, 2000):
            yield SimpleNamespace(state=SimpleNamespace(params=state, statistics=0))

    class Trainer:
        def __init__(self, recipe, data, mesh):
            assert data is images
            assert mesh.size == 1
            self.recipe = recipe

        def init_state(self, seeds):
            assert seeds == (0,)
            return 100

    monkeypatch.setattr(measures.datasets, "load", {"digits": images}.get)
    monkeypatch.setattr(measures, "outputs_of", outputs_of)
    monkeypatch.setattr(measures, "Trainer", Trainer)
    monkeypatch.setattr(measures.chunks, "epochs", epochs)
    draw = measures.real_layer()
    before, after = draw(jax.random.key(0), 300)
    assert before.shape == (300, 16)
    np.testing.assert_allclose(after - before, 1000, atol=1e-3)
    every = np.concatenate([images.x_train, images.x_test]).reshape(85, 16)
    drawn = {tuple(np.round(row, 3)) for row in np.asarray(after - 2000)}
    # 300 draws from 85 images miss two or three images on average.
    assert 75 <= len(drawn) <= 85
    assert all(np.abs(every - row).sum(1).min() < 0.1 for row in drawn)
    recipe = asked["recipe"]
    assert (recipe.momentum, recipe.drops, recipe.model) == (0.0, (), "mlp")


def test_the_table_has_a_row_for_each_pair(capsys):
    estimates = {
        "exact": {"bias": 0.0, "spread": 0.0},
        "slices": {"bias": -0.25, "spread": 0.125},
        "lower bound": {"bias": -0.5, "spread": 0.01},
        "Algorithm 3": {"bias": -0.9875, "spread": 0.001},
    }
    shift_estimators.show([{"name": "pair", "distance": 6.25, "estimates": estimates}], 7)
    text = capsys.readouterr().out
    assert "mean ± sd of 7 seeds" in text
    (row,) = (line for line in text.splitlines() if "pair" in line and "6.250" in line)
    cells = [cell.strip() for cell in row.strip("│┃ ").split("│")]
    assert cells == [
        "pair", "6.250", "+0.000 ± 0.000", "-0.250 ± 0.125", "-0.500 ± 0.010", "1.2e-02 × W₁",
    ]  # fmt: skip


def test_the_numbers_are_written_with_their_settings(tmp_path, monkeypatch, capsys):
    def measure(case, seeds, steps):
        estimates = {name: {"bias": 0.5, "spread": 0.25} for name in "abcd"}
        return {"name": case, "distance": 1.0, "estimates": estimates}

    monkeypatch.setattr(measures, "cases", lambda: iter(["one", "two"]))
    monkeypatch.setattr(measures, "measure", measure)
    out = tmp_path / "new" / "numbers.json"
    shift_estimators.main(seeds=2, steps=9, out=out)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["settings"] == {"seeds": 2, "steps": 9, "train": 2000, "test": 500}
    assert [pair["name"] for pair in found["pairs"]] == ["one", "two"]
    assert found["command"].startswith("python scripts/shift_estimators.py")
    said = capsys.readouterr().out
    assert "1.5e+00 × W₁" in said
    assert "of 2 seeds" in said
