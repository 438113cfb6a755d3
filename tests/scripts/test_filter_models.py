"""Models of filters, compared with layers: the measurements and output of the command."""

import inspect
import json

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import gamma, gammaln

import filter_models as command
from claims.cwda import accuracies
from experiments.cli import InputError
from experiments.measures import filter_models
from experiments.pages import filter_models as models_page
from pruning import CRITERIA, gaussian, weights
from tests.support.recorded import assert_as_recorded, condense


def test_gaussian_filters_of_one_scale_are_predicted_by_all_models():
    rng = np.random.default_rng(0)
    kernels = {str(i): rng.standard_normal((3, 3, 16, 64), np.float32) for i in range(4)}
    found = filter_models.network(kernels)
    for model in found["models"].values():
        # Spearman's ρ is near 0.93, and has a standard error of 0.02 for 64 filters.
        assert model["error"] < 0.03
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


@pytest.mark.parametrize("results", [None, {}, {"accuracy": None}, {"accuracy": {"mean": 0.9}}])
def test_a_folder_without_results_of_pruning_is_refused_before_any_fit(results, tmp_path):
    if results is not None:
        (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=r"results of scripts/prune\.py; .* has none"):
        command.main((tmp_path / "no.safetensors",), (tmp_path,), out=tmp_path / "out")


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
    assert "Can three numbers of a layer" in text


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


def noises(shape, dims, effective):
    """The numbers a, b and c of `scaled_l1_l2_correlation`, for weights of a generalized Gaussian.

    Of a chi variable with k degrees of freedom, b is the squared coefficient of variation.
    """
    m1, m2, m3, m4 = (gamma((k + 1) / shape) / gamma(1 / shape) for k in range(1, 5))
    a = (m2 / m1**2 - 1) / dims
    b, c = (m4 / m2**2 - 1) / 4, (m3 / (m1 * m2) - 1) / 2
    share = c**2 / (a * dims * b)

    def exact(n):
        k = n / (2 * b)
        return k / (2 * np.exp(2 * (gammaln((k + 1) / 2) - gammaln(k / 2)))) - 1

    more = (exact(effective) - exact(dims)) * dims / b
    return a * (1 + share * more), exact(effective), c / b * exact(effective)


def test_layers_have_the_measurements_of_scipy_and_the_predictions_of_fitted_models(monkeypatch):
    """The fits, which take seconds to compile, are fakes: one with, one without correlations."""

    def fit(v, *, correlated=True):
        assert v.shape == (24, 12)
        return gaussian.FilterModel(*map(jnp.float32, fits["three" if correlated else "two"]))

    # shapes, spreads and effective dimensions
    fits = {"gaussian": (2.0, 0.0, 12.0), "two": (1.1, 0.2, 12.0), "three": (1.3, 0.25, 7.0)}

    monkeypatch.setattr(filter_models.gaussian, "fit_filter_model", fit)
    monkeypatch.setattr(filter_models, "_fit", inspect.unwrap(filter_models._fit))
    monkeypatch.setattr(filter_models, "RESAMPLES", 20)
    monkeypatch.setattr(filter_models, "DRAWS", 60)
    rng = np.random.default_rng(0)
    kernels = {}
    for name, spread in (("one", 0.3), ("two", 0.1)):
        kernel = rng.laplace(size=(3, 2, 2, 24)) * rng.lognormal(0, spread, 24)
        kernels[name] = kernel.astype(np.float32)
    found = filter_models.network(kernels)
    resampled = np.random.default_rng(0).integers(24, size=(20, 24))
    for name, kernel in kernels.items():
        row = found["layers"][name]
        v = kernel.reshape(12, 24).T.astype(float)
        l1, l2 = np.abs(v).sum(1), np.linalg.norm(v, axis=1)
        assert (row["filters"], row["dims"]) == (24, 12)
        measured = row["measured"]
        assert measured["spearman"] == pytest.approx(scipy.stats.spearmanr(l1, l2)[0])
        assert measured["kendall"] == pytest.approx(scipy.stats.kendalltau(l1, l2)[0])
        lowest = set(np.argsort(l1)[:12]) & set(np.argsort(l2)[:12])
        assert measured["overlap"] == pytest.approx(len(lowest) / 12)
        if name == "one":
            spearman = [scipy.stats.spearmanr(l1[i], l2[i])[0] for i in resampled]
            np.testing.assert_allclose(measured["interval"], np.quantile(spearman, (0.025, 0.975)))
        assert [row["shape"], row["spread"], row["effective_dims"]] == pytest.approx(fits["three"])
        rhos = {"logs": np.corrcoef(np.log(l1), np.log(l2))[0, 1]}
        for model, (shape, spread, effective) in fits.items():
            a, b, c = noises(shape, 12, effective)
            rhos[model] = (spread**2 + c) / ((spread**2 + a) * (spread**2 + b)) ** 0.5
        kendall = {model: part["kendall"] for model, part in row["predicted"].items()}
        expected = {model: 2 / np.pi * np.arcsin(rho) for model, rho in rhos.items()}
        assert kendall == pytest.approx(expected, rel=1e-4)
        for model, rho in rhos.items():
            part = row["predicted"][model]
            mean = 6 * (np.arcsin(rho) + 22 * np.arcsin(rho / 2)) / (np.pi * 25)
            assert part["spearman"] == pytest.approx(mean, rel=1e-4)
            assert part["overlap"] == pytest.approx(0.5 + np.arcsin(rho) / np.pi, rel=1e-4)
            assert part["interval"][0] < part["spearman"] < part["interval"][1]
    for model, errors in found["models"].items():
        rows = found["layers"].values()
        apart = [abs(r["predicted"][model]["spearman"] - r["measured"]["spearman"]) for r in rows]
        assert errors["error"] == pytest.approx(np.mean(apart))
    assert set(found["models"]) == {"gaussian", "two", "three", "logs"}


def test_accuracies_of_the_paper_and_of_other_networks_are_explained_in_points(monkeypatch):
    monkeypatch.setattr(filter_models, "RESAMPLES", 5)
    rng = np.random.default_rng(0)
    values = {
        name: {stage: {"values": rng.uniform(0.5, 0.9, 4)} for stage in filter_models.STAGES}
        for name in (*CRITERIA, "random")
    }
    others = {"task": {"accuracy": {"by criterion": values}}}
    found = filter_models.table_4(others)
    stages = ["Table_4:pruned", "Table_4:fine-tuned"]
    stages += ["task:pruned", "task:recalibrated", "task:fine-tuned"]
    assert list(found) == stages
    pruned, tuned = (np.reshape(x, (18, 3)) for x in (accuracies.PRUNED, accuracies.FINE_TUNED))
    for stage, rows in (("pruned", pruned), ("fine-tuned", tuned)):
        block = found[f"Table_4:{stage}"]
        assert block["networks"] == 18
        assert block["points"] == pytest.approx(
            {
                "l1-l2": np.abs(rows[:, 0] - rows[:, 1]).mean(),
                "l1-gm": np.abs(rows[:, 0] - rows[:, 2]).mean(),
                "l2-gm": np.abs(rows[:, 1] - rows[:, 2]).mean(),
            }
        )
        apart = np.tile([*block["disjoint"].values()], 18)
        pairs = np.abs(
            np.stack(
                [
                    rows[:, int(a == "l2")] - rows[:, 1 + int(b == "gm")]
                    for a, b in (p.split("-") for p in block["disjoint"])
                ],
                1,
            )
        )
        assert block["correlation"] == pytest.approx(np.corrcoef(apart, pairs.ravel())[0, 1])
    for stage in filter_models.STAGES:
        block = found[f"task:{stage}"]
        assert block["networks"] == 4
        assert len(block["points"]) == len(CRITERIA) * (len(CRITERIA) - 1) // 2
        for pair, points in block["points"].items():
            first, second = (values[name][stage]["values"] for name in pair.split("-"))
            assert points == pytest.approx(100 * np.abs(first - second).mean())


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


def test_equal_accuracies_have_nothing_to_explain():
    """The page shows dashes, and the first sentence is about the other blocks."""
    stages = {stage: {"values": [0.9, 0.8]} for stage in filter_models.STAGES}
    equal = {"accuracy": {"by criterion": dict.fromkeys(CRITERIA, stages)}}
    blocks = filter_models.table_4({"run": equal})
    for stage in filter_models.STAGES:
        found = blocks[f"run:{stage}"]
        assert {found[name] for name in ("correlation", "explained", "by_pair")} == {None}
        assert found["p_value"] is None
    text = models_page._accuracies(blocks)
    assert text.count(">–<") == 12
    (finding,) = models_page.findings({"networks": {}, "accuracies": blocks})
    assert "of 2 sets of networks" in finding


def test_networks_of_one_name_are_refused(tmp_path):
    paths = (tmp_path / "a" / "net.safetensors", tmp_path / "b" / "net.safetensors")
    sentence = r"must have different names; .*a/net.safetensors and .*b/net.safetensors are both"
    with pytest.raises(InputError, match=sentence):
        command.main(paths, out=tmp_path / "out")
    folders = (tmp_path / "a" / "run", tmp_path / "b" / "run")
    for folder in folders:
        folder.mkdir(parents=True)
        text = json.dumps({"accuracy": {"by criterion": {}}})
        (folder / "results.json").write_text(text)
    with pytest.raises(
        InputError, match=r"must have different names; .*a/run and .*b/run are both"
    ):
        command.main(paths[:1], folders, out=tmp_path / "out")
