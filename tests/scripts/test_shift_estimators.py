"""The experiment on pairs of known distance, at a small size."""

import json
import math

import jax
import pytest

import shift_estimators
from experiments.cli import InputError
from experiments.measures import shift_estimators as measures


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Not small: a layer of the paper's network is looked at by name."""


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


def test_distributions_have_the_distances_that_are_stated(monkeypatch):
    monkeypatch.setattr(measures, "real_layer", lambda: None)  # nothing is trained
    # W₁ of N(0, I) and N(0, 4 I) is E‖z‖.
    cases = {case.name: case for case in measures.cases()}
    stated = cases["Gaussians, d = 2, scales 1 and 2"].distance
    assert stated is not None
    assert math.isclose(stated, math.sqrt(math.pi / 2))
    x, y = cases["Gaussians, d = 64, shift 8"].draw(jax.random.key(0), 4000)
    assert abs(float(jax.numpy.linalg.norm(y.mean(0) - x.mean(0))) - 8) < 0.2


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(InputError, match="--seeds must be at least 2; got 1"):
        shift_estimators.main(seeds=1, out=tmp_path / "x.json")
