"""Models of filters, compared with layers: the measurements and output of the command."""

import json

import numpy as np
import pytest

import filter_models as command
from experiments.cli import InputError
from experiments.measures import filter_models
from pruning import CRITERIA, weights
from tests.support.recorded import assert_as_recorded, condense


def test_gaussian_filters_of_one_scale_are_predicted_by_all_models():
    rng = np.random.default_rng(0)
    kernels = {str(i): rng.standard_normal((3, 3, 16, 64), np.float32) for i in range(4)}
    found = filter_models.network(kernels)
    for model in found["models"].values():
        assert model["error"] < 0.03  # Spearman's ρ of 64 filters has a standard error of 0.02
        assert model["within"] >= 3
    assert all(abs(layer["shape"] - 2) < 0.1 for layer in found["layers"].values())


def test_predicted_intervals_are_those_of_a_normal_pair():
    rng = np.random.default_rng(0)
    found = filter_models.predict(0.6, 40, rng)
    low, high = found["interval"]
    x = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], (4000, 40))
    ranks = x.argsort(1).argsort(1)
    d = ranks[..., 0] - ranks[..., 1]
    spearman = 1 - 6 * (d**2).sum(1) / (40 * (40**2 - 1))
    np.testing.assert_allclose(np.quantile(spearman, (0.025, 0.975)), (low, high), atol=0.03)
    np.testing.assert_allclose(spearman.mean(), found["spearman"], atol=0.01)


def test_differences_that_are_those_of_overlaps_are_explained_wholly():
    accuracy = {name: np.zeros(3) for name in ("l1", "l2", "gm")}
    disjoint = filter_models.explain(accuracy | {"l1": np.ones(3)})["disjoint"]
    # Only the pairs l1-l2 and l1-gm have different accuracies, and these pairs overlap least.
    whole = {"l1": np.full(3, 0.1), "l2": np.zeros(3), "gm": np.zeros(3)}
    found = filter_models.explain(whole)
    assert disjoint["l2-gm"] < disjoint["l1-l2"] < disjoint["l1-gm"]
    assert found["explained"] > 0.9
    assert found["by_pair"] == pytest.approx(1)
    assert found["p_value"] < 0.1


def test_the_command_writes_its_page(tmp_path):
    rng = np.random.default_rng(1)
    path, pruned = tmp_path / "net.safetensors", tmp_path / "pruned"
    kernels = {
        name: (rng.standard_t(5, shape) * rng.lognormal(0, 0.3, shape[-1])).astype(np.float32)
        for name, shape in {"a": (3, 3, 2, 12), "b": (1, 1, 30, 20)}.items()
    }
    weights.save(path, kernels)
    accuracies = {
        name: {
            stage: {"values": rng.uniform(0.5 + 0.1 * i, 0.7 + 0.1 * i, 4).tolist()}
            for stage in filter_models.STAGES
        }
        for i, name in enumerate((*CRITERIA, "random"))
    }
    pruned.mkdir()
    (pruned / "results.json").write_text(json.dumps({"accuracy": {"by criterion": accuracies}}))
    command.main((path,), (pruned,), out=tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert_as_recorded("runs/filter_models", condense(results), rtol=2e-3, atol=1e-5)
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Do three numbers of a layer" in text


def test_the_interval_of_a_layer_is_that_of_a_bootstrap():
    """If n normal pairs have correlation ρ, Spearman's deviates by ≈ (1 − ρ²) √(1 + ρ²/2) / √n."""
    rng = np.random.default_rng(3)
    sizes = rng.lognormal(0, 0.02, (400, 1))  # filters have different scales
    found = filter_models.layer(
        (sizes * rng.standard_normal((400, 30))).astype(np.float32), np.random.default_rng(4)
    )["measured"]
    low, high = found["interval"]
    assert low < found["spearman"] < high
    rho = 2 * np.sin(np.pi / 6 * found["spearman"])
    width = 2 * 1.96 * (1 - rho**2) * np.sqrt(1 + rho**2 / 2) / np.sqrt(400)
    assert high - low == pytest.approx(width, rel=0.35)


def test_a_model_is_right_about_a_layer_that_lies_in_its_interval():
    """The measured values of the first and the third layer lie in the predicted intervals."""
    layers = {
        str(i): {
            "measured": {"spearman": measured, "interval": [0.0, 1.0]},
            "predicted": {"two": {"spearman": expected, "interval": interval}},
        }
        for i, (measured, expected, interval) in enumerate(
            [(0.5, 0.6, [0.5, 0.7]), (0.8, 0.6, [0.5, 0.7]), (0.4, 0.8, [0.3, 0.9])]
        )
    }
    found = filter_models._errors(layers, "two")
    assert (found["within"], found["layers"]) == (2, 3)
    assert found["error"] == pytest.approx(0.7 / 3)
    assert found["stderr"] == pytest.approx(np.std([0.1, 0.2, 0.4], ddof=1) / 3**0.5)


def test_a_file_has_two_layers_that_can_be_ranked_or_is_refused(tmp_path):
    kernel = np.random.default_rng(2).standard_normal((3, 3, 2, 8), np.float32)
    path = tmp_path / "net.safetensors"
    weights.save(path, {"a": kernel, "b": kernel[..., :3]})
    with pytest.raises(InputError, match=r"net\.safetensors must have at least two .* has 1$"):
        command.kernels(path)
