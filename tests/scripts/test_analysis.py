"""Measurements of layers, compared with SciPy and with values computed by hand."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import analyze
import pruning
from experiments.measures import analysis
from experiments.measures.analysis import BAND, LEVEL, PAIRS, TESTS

RESNET20 = Path(analyze.__file__).parents[1] / "docs/results/resnet20/results.json"


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("v", "ratio", "why"),
    [
        (np.ones((4, 3)), 0.25, None),
        (np.ones((4, 3)), 0.24, "has 4 filters, too few for one to be in the lowest 0.24"),
        (np.ones((3, 9)), 1.0, "has 3 filters of 9 dims; 4 and 3 are needed"),
        (np.ones((9, 2)), 1.0, "has 9 filters of 2 dims; 4 and 3 are needed"),
        (np.zeros((4, 3)), 0.5, "holds nothing but zeros"),
        (np.eye(4, 3), 0.5, None),
        (np.where(np.eye(4, 3) > 0, np.inf, 1), 0.5, "holds weights that are not finite"),
    ],
)
def test_a_layer_is_fit_to_be_ranked_or_it_is_said_why(v, ratio, why):
    assert analysis.unfit(v, ratio) == why


def test_layers_above_a_correlation_are_counted_for_each_pair():
    layers = [{"spearman": dict.fromkeys(PAIRS, value)} for value in (0.95, 0.9, 0.5)]
    layers[2]["spearman"][PAIRS[0]] = 0.91
    results: Any = {"layers": layers}
    assert analysis.above(results) == {pair: (1 + (pair == PAIRS[0]), 3) for pair in PAIRS}
    assert analysis.above(results, 0.4)[PAIRS[1]] == (3, 3)


def test_theory_is_none_beyond_the_criteria_of_the_paper():
    expected = float(pruning.expected_spearman(64.0, 9.0, pair=("l1", "l2")))
    found = analysis.theory(pruning.expected_spearman, 64.0, 9.0, pair=("l1", "l2"))
    assert found == expected

    def unknown(n, *, pair):
        raise ValueError(pair)

    assert analysis.theory(unknown, 3, pair="pear") is None


@pytest.fixture(scope="module")
def committed():
    return json.loads(RESNET20.read_text(encoding="utf-8"))


def test_a_test_fails_where_holm_s_correction_over_layers_rejects_it(committed):
    """The failed tests of each layer are the tests that the procedure of Holm (1979) rejects."""
    layers = [dict(layer) for layer in committed["layers"]]
    analysis.judge(layers)
    for i, layer in enumerate(layers):
        expected = []
        for test in TESTS:
            p_values = np.array([each["p_values"][test] for each in layers], float)
            order = np.argsort(p_values, kind="stable")
            steps = p_values[order] * (len(order) - np.arange(len(order)))
            adjusted = np.minimum(np.maximum.accumulate(steps), 1)
            if adjusted[list(order).index(i)] < LEVEL:
                expected.append(test)
        if layer["mean_equivalence_p_value"] >= LEVEL:
            expected.append("mean")
        assert layer["fails"] == expected == committed["layers"][i]["fails"]


def test_what_has_no_p_value_fails_no_test():
    def layer(p_value, mean):
        return {"p_values": dict.fromkeys(TESTS, p_value), "mean_equivalence_p_value": mean}

    layers = [layer(np.nan, 0.01), layer(0.02, LEVEL), layer(0.9, 0.049)]
    analysis.judge(layers)
    # Holm's correction multiplies the p-value 0.02 by the number of layers, 3. The corrected
    # p-value 0.06 is above the level of 5 %, so the second layer fails none of `TESTS`. The second
    # layer fails `mean`, because its p-value of equivalence is not below the level.
    assert [layer["fails"] for layer in layers] == [[], ["mean"], []]
    layers[1] = layer(0.016, 0.01)
    analysis.judge(layers)
    assert [layer["fails"] for layer in layers] == [[], [*TESTS], []]
    nothing: list[dict[str, Any]] = []
    analysis.judge(nothing)
    assert nothing == []


def test_a_histogram_is_a_density_beside_the_gaussian_of_its_width():
    weights = drawn(5, 7, 16)
    found = analysis.histogram("stem", weights)
    x = weights.ravel().astype(float)
    assert (found["layer"], found["weights"]) == ("stem", 560)
    assert len(found["density"]) == 8 + 560 // 40
    np.testing.assert_allclose(np.diff(found["edges"]) @ found["density"], 1)
    assert (found["edges"][0], found["edges"][-1]) == (x.min(), x.max())
    counts = np.array(found["density"]) * np.diff(found["edges"]) * 560
    np.testing.assert_allclose(counts[:3], [np.sum((lo <= x) & (x < hi)) for lo, hi in zip(
        found["edges"][:3], found["edges"][1:4], strict=True)], atol=1e-6)  # fmt: skip
    np.testing.assert_allclose(found["sigma"], np.sqrt((x**2).mean()), rtol=1e-6)
    reference = scipy.stats.kstest(x / found["sigma"], "norm")
    np.testing.assert_allclose(found["ks"], reference.statistic, rtol=1e-4)
    assert len(analysis.histogram("a", drawn(9000))["density"]) == 60
    shifted = analysis.histogram("a", drawn(560) + 5)
    assert shifted["p_value"] < 1e-6 < found["p_value"]


def test_correlations_are_of_the_first_filters_in_their_mean_variance(monkeypatch):
    monkeypatch.setattr(analysis, "SHOWN", 3)
    kernel = drawn(3, 3, 8, 5)
    found = analysis.correlations("stem", kernel)
    v = np.moveaxis(kernel, -1, 0).reshape(5, -1)[:3].astype(float)
    expected = v @ v.T / 72  # the filters' means are not subtracted here
    assert (found["layer"], found["dims"]) == ("stem", 72)
    np.testing.assert_allclose(np.mean(np.diag(found["covariance"])), 1, atol=1e-4)
    np.testing.assert_allclose(
        found["covariance"], expected / np.diag(expected).mean(), atol=0.06
    )  # `correlations` subtracts the filters' means, which are near 0
    assert np.shape(found["covariance"]) == (3, 3)


@pytest.fixture(scope="module")
def ranked():
    """Rankings of layers with a tiny filter (a), a zero and a small filter (b), two filters (c)."""
    kernels = {"a": drawn(3, 3, 8, 16), "b": drawn(3, 3, 8, 16, seed=1), "c": drawn(3, 3, 4, 2)}
    kernels["a"][..., 2] *= 1e-8
    kernels["b"][..., 5] = 0
    kernels["b"][..., 6] *= 1e-4
    return kernels, analysis.rankings(kernels, ratio=0.25, gaussian_layers=40)


def test_convolutions_are_ranked_and_other_arrays_of_some_size_drawn():
    measure = partial(analysis.measure, ratio=0.5, gaussian_layers=40)
    arrays = {f"conv{i}": drawn(3, 3, 8, 16, seed=i) for i in range(4)}
    arrays |= {"dense": drawn(4, 4), "small": drawn(3, 5), "bias": drawn(16)}
    found = measure(arrays)
    assert found["kind"] == "convolutions"
    assert [layer["name"] for layer in found["layers"]] == [f"conv{i}" for i in range(4)]
    assert found["chosen"] == ["conv0", "conv2", "conv3"]
    for part, function in (
        ("histograms", analysis.histogram),
        ("covariances", analysis.correlations),
    ):
        assert found[part] == [function(name, arrays[name]) for name in found["chosen"]]
    assert found["others"] == [analysis.histogram(name, arrays[name]) for name in ("dense", "bias")]
    assert measure({"conv0": arrays["conv0"]})["chosen"] == ["conv0"]
    alone = measure({"bias": arrays["bias"]})
    assert (alone["kind"], alone["chosen"]) == ("convolutions", [])


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, ""), (1, "a"), (2, "ab"), (3, "abc"), (4, "acd"), (5, "ace")]
)
def test_the_first_the_middle_and_the_last_ranked_layer_are_shown_once(count, chosen, monkeypatch):
    """A fake `rankings` omits layer `z`, which must not be shown."""
    ranked: Any = {"layers": [{"name": name} for name in "abcde"[:count]]}
    monkeypatch.setattr(analysis, "rankings", lambda *_, **__: ranked)
    for part in ("histogram", "correlations"):
        monkeypatch.setattr(analysis, part, lambda name, w, part=part: (part, name, w.shape))
    kernels = {name: np.ones((4, 4, i)) for i, name in enumerate("zabcde", 1)}
    others = {"dense": np.ones((4, 4)), "bias": np.ones(16), "few": np.ones(15)}
    found = analysis.measure(kernels | others, ratio=0.5, gaussian_layers=2)
    assert found["chosen"] == [*chosen]
    shapes = {name: w.shape for name, w in kernels.items()}
    assert found["histograms"] == [("histogram", name, shapes[name]) for name in chosen]
    assert found["covariances"] == [("correlations", name, shapes[name]) for name in chosen]
    # `others` has no convolutions, not even unranked convolutions
    assert found["others"] == [("histogram", "dense", (4, 4)), ("histogram", "bias", (16,))]


def test_a_layer_is_described_by_its_rankings(ranked):
    kernels, found = ranked
    assert [layer["name"] for layer in found["layers"]] == ["a", "b"]
    assert found["left_out"] == {"c": "has 2 filters of 36 dims; 4 and 3 are needed"}
    assert [layer["dead"] for layer in found["layers"]] == [1, 1]
    for layer in found["layers"]:
        v = np.moveaxis(kernels[layer["name"]], -1, 0).reshape(16, 72).astype(float)
        assert (layer["filters"], layer["dims"]) == (16, 72)
        scores = {"l1": np.abs(v).sum(1), "l2": np.linalg.norm(v, axis=1)}
        scores["gm"] = np.linalg.norm(v[:, None] - v, axis=2).sum(1)
        for name, expected in scores.items():
            np.testing.assert_allclose(layer["scores"][name], expected, rtol=1e-5)
            np.testing.assert_array_equal(layer["first"][name], np.argsort(expected)[:8])
        for pair in ("l1-l2", "l1-gm", "l2-gm"):
            one, other = (scores[name] for name in pair.split("-"))
            rho = np.asarray(scipy.stats.spearmanr(one, other))[0]
            np.testing.assert_allclose(layer["spearman"][pair], rho, rtol=1e-5)
            lowest = [set(np.argsort(s)[:4]) for s in (one, other)]  # the 4 lowest of 16 scores
            np.testing.assert_allclose(layer["overlap"][pair], len(lowest[0] & lowest[1]) / 4)
        z = layer["spearman_z"]["l1-l2"]
        p_value = 2 * scipy.stats.norm.sf(abs(z))
        np.testing.assert_allclose(layer["p_values"]["spearman"], p_value, rtol=1e-4)


def test_kernels_are_those_of_convolutions_of_any_rank_or_of_dense_layers():
    shapes = {"bias": (4,), "dense": (3, 4)}
    arrays = {name: np.ones(shape) for name, shape in shapes.items()}
    found = analysis.kernels_of(arrays)
    assert (found[0], list(found[1])) == ("dense layers", ["dense"])
    for shape in ((5, 3, 4), (2, 2, 2, 3, 4)):
        found = analysis.kernels_of(arrays | {"conv": np.ones(shape)})
        assert (found[0], list(found[1])) == ("convolutions", ["conv"])


def test_a_layer_s_sizes_go_with_its_tests(ranked):
    kernels, found = ranked
    layer = found["layers"][0]
    v = np.moveaxis(kernels["a"], -1, 0).reshape(16, 72).astype(float)
    np.testing.assert_allclose(layer["sigma"], np.sqrt((v**2).mean()), rtol=1e-5)
    np.testing.assert_allclose(layer["mean"], v.mean() / v.std(), rtol=1e-4)
    stds = v.std(1, ddof=1)
    np.testing.assert_allclose(layer["std_spread"], stds.std(ddof=1) / stds.mean(), rtol=1e-4)
    reference = scipy.stats.kstest(v.ravel() / layer["sigma"], "norm")
    np.testing.assert_allclose(layer["ks"], reference.statistic, rtol=1e-4)
    # the bound of Dvoretzky, Kiefer and Wolfowitz at the level of 5 %
    beyond = np.sqrt(np.log(2 / 0.05) / (2 * v.size))
    np.testing.assert_allclose(layer["ks_bound"], layer["ks"] + beyond, rtol=1e-5)
    assert layer["p_values"].keys() == TESTS.keys()
    for test, z in (("uncorrelated", "off_diagonal_z"), ("spherical", "sphericity_z")):
        expected = 2 * scipy.stats.norm.sf(abs(layer[z]))
        np.testing.assert_allclose(layer["p_values"][test], expected, rtol=1e-4)
    report = jax.jit(pruning.weight_tests.covariance_report)(jnp.asarray(v, jnp.float32))
    for name in ("diagonal_z", "smallest_eigenvalue", "largest_eigenvalue"):
        field = name.removesuffix("_z").removesuffix("_eigenvalue")
        np.testing.assert_allclose(layer[name], getattr(report, field), rtol=1e-3)
    for name in ("low", "high"):
        np.testing.assert_allclose(layer[f"{name}_edge"], getattr(report, name), rtol=1e-4)
    assert 0 < layer["p_values"]["symmetry"] < 1
    bartlett = scipy.stats.bartlett(*v).pvalue
    np.testing.assert_allclose(layer["p_values"]["homogeneity"], bartlett, rtol=1e-3)
    assert 0 < layer["mean_equivalence_p_value"] < 1


def test_the_band_of_a_shape_has_nineteen_of_twenty_gaussian_layers(ranked):
    _, found = ranked
    bands = found["gaussian"]["16x72"]
    assert found["gaussian"].keys() == {"16x72"}
    assert bands.keys() == {*PAIRS}
    values = []
    for seed in range(60):
        v = drawn(16, 72, seed=1000 + seed).astype(float)
        one, other = np.abs(v).sum(1), np.linalg.norm(v, axis=1)
        values.append(np.asarray(scipy.stats.spearmanr(one, other))[0])
    low, high = bands["l1-l2"]["spearman"]
    inside = np.mean([(low <= value) & (value <= high) for value in values])
    assert 0.8 < inside <= 1
    assert low < np.quantile(values, 0.1)
    assert high > np.quantile(values, 0.9)
    for pair, band in bands.items():
        one, other = pair.split("-")
        expected = pruning.expected_spearman(16.0, 72.0, pair=(one, other))
        np.testing.assert_allclose(band["expected_spearman"], float(expected), rtol=1e-6)
        overlap = pruning.gaussian.expected_overlap(16.0, 72.0, pair=(one, other), ratio=0.25)
        np.testing.assert_allclose(band["expected_overlap"], float(overlap), rtol=1e-6)
        assert 0 <= band["overlap"][0] <= band["overlap"][1] <= 1
    assert sum(BAND) == 1
