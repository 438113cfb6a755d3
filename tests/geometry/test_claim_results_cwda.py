"""What claims of the pruning paper say of our networks is what docs/results has."""

import json
import re
import statistics
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from claims import PAPERS

ROOT = Path(__file__).parents[2]
RESULTS = {claim.name: claim.results for claim in PAPERS["cwda"] if claim.results}


@cache
def analysis(name):
    """Of one network: every layer of the ResNet-20, those of 100 neurons of the dense one."""
    found = json.loads((ROOT / f"docs/results/{name}/results.json").read_text(encoding="utf-8"))
    if name == "mnist-mlp":
        found["layers"] = [layer for layer in found["layers"] if layer["filters"] == 100]
    return found


def mean(values, digits=3):
    """Mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def of_layers(measure, pair, filters=None, name="resnet20"):
    layers = [layer for layer in analysis(name)["layers"] if filters in (None, layer["filters"])]
    return [layer[measure][pair] for layer in layers]


def failing(test, name="resnet20"):
    return sum(test in layer["fails"] for layer in analysis(name)["layers"])


def ratio_variances():
    """dims × Var(l1/l2) of each layer, both scaled to mean 1."""
    for layer in analysis("resnet20")["layers"]:
        l1, l2 = (np.array(layer["scores"][name]) for name in ("l1", "l2"))
        yield layer["dims"] * np.var(l1 / l1.mean() / (l2 / l2.mean()), ddof=1)


def numbers_of_table_1(name="resnet20"):
    layers = analysis(name)["layers"]
    shared = [len(set(layer["first"]["l1"]) & set(layer["first"]["l2"])) for layer in layers]
    return [mean(shared, 1), f"{len(shared)} layers"]


def numbers_of_figure_1(name="resnet20"):
    pairs = ("l1-l2", "l2-gm", "l2-fermat")
    return [mean(of_layers("spearman", pair, name=name)) for pair in pairs]


def numbers_of_figure_2(name="resnet20"):
    return [mean(of_layers("overlap", pair, name=name)) for pair in ("l1-l2", "l2-gm")]


def numbers_of_figure_3(name="resnet20"):
    distances = [layer["ks"] for layer in analysis(name)["layers"]]
    spread = f"{min(distances):.3f} to {max(distances):.3f}, median"
    rejecting = f"{failing('normal', name)} of {len(distances)}"
    return [rejecting, f"{spread} {statistics.median(distances):.3f}"]


def numbers_of_figure_4(name="resnet20"):
    found = [of_layers("spearman", pair, name=name) for pair in ("l1-l2", "l1-gm", "l2-gm")]
    l1_l2, l1_gm, l2_gm = (sum(rho > 0.9 for rho in values) for values in found)
    return [f"in {l1_l2} of {len(found[0])}", f"{l1_gm} for l1 and GM", f"{l2_gm} for l2 and GM"]


def numbers_of_figure_5():
    return [
        mean(of_layers("spearman", pair, filters))
        for pair in ("l2-gm", "l1-l2")
        for filters in (16, 32, 64)
    ]


def numbers_of_figure_8():
    others = [other["p_value"] < 0.05 for other in analysis("resnet20")["others"]]
    return [f"{sum(others)} of {len(others)}", f"{failing('normal')} of 19 convolutions"]


def numbers_of_figure_9():
    variances = list(ratio_variances())
    return [f"{min(variances):.3f} to {max(variances):.2f}, median {np.median(variances):.3f}"]


NUMBERS = {
    "Table 1": numbers_of_table_1,
    "Figure 1": numbers_of_figure_1,
    "Figure 2": numbers_of_figure_2,
    "Equation 2, CWDA": lambda: [
        f"{failing(test)} of 19" for test in ("normal", "homogeneity", "uncorrelated", "spherical")
    ],
    "Figure 3, Table 3": numbers_of_figure_3,
    "Figure 4": numbers_of_figure_4,
    "Figure 5": numbers_of_figure_5,
    "Figure 6": lambda: [f"{failing(test)} of 19" for test in ("uncorrelated", "spherical")],
    "Section 4.3, Figure 8": numbers_of_figure_8,
    "CWDA Plus": lambda: [f"{failing('symmetry')} of 19"],
    "Figure 9": numbers_of_figure_9,
}


def test_every_claim_with_results_is_in_the_table():
    assert set(RESULTS) == {*NUMBERS, "Table 4"}
    for results in RESULTS.values():
        assert all((ROOT / result.page).exists() for result in results)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_resnet_are_those_of_its_page(name):
    result, *_ = RESULTS[name]
    assert result.page == "docs/results/resnet20/results.json"
    for number in NUMBERS[name]():
        assert number in result.ours


@pytest.mark.parametrize("network", ["mnist-mlp", "cifar10-vgg11", "cifar10-preact20"])
@pytest.mark.parametrize(
    "name", ["Table 1", "Figure 1", "Figure 2", "Figure 3, Table 3", "Figure 4"]
)
def test_numbers_of_another_network_are_those_of_its_page(name, network):
    (result,) = (r for r in RESULTS[name] if r.page == f"docs/results/{network}/results.json")
    for number in NUMBERS[name](network):
        assert number in result.ours


def test_the_page_on_pruning_says_how_alike_criteria_are_after_short_trainings():
    text = " ".join((ROOT / "docs/pruning.md").read_text(encoding="utf-8").split())
    said = (
        ("resnet20", "{} in a [trained ResNet-20]"),
        ("cifar10-preact20", "{} in [one after four epochs]"),
        ("cifar10-vgg11", "{} in a [VGG-11 after one]"),
    )
    for name, words in said:
        rho = f"{statistics.mean(of_layers('spearman', 'l2-gm', name=name)):.2f}"
        assert f"{words.format(rho)}(results/{name}/results.json)" in text
    path = ROOT / "docs/results/prune/cifar10/results.json"
    accuracy = json.loads(path.read_text(encoding="utf-8"))["accuracy"]
    by = {name: 100 * part["fine-tuned"]["mean"] for name, part in accuracy["by criterion"].items()}
    l1, l2, fermat, gm = (f"{by[name]:.1f}" for name in ("l1", "l2", "fermat", "gm"))
    assert fermat == gm
    assert f"fine-tuned, {l1} and {l2} % by l1 and l2 and {gm} % by Fermat and GM" in text
    assert f"(p {accuracy['friedman']['fine-tuned']['p']:.2f}, [page]" in text


@cache
def report():
    path = ROOT / "docs/results/report/results.json"
    return json.loads(path.read_text(encoding="utf-8"))["pruning"]


def of_networks(measure, normalization, pair):
    """A mean over layers for each network, and how many layers of all are above 0.9."""
    layers = np.array(report()[normalization][measure][pair])
    return mean(layers.mean(1).tolist()), f"{(layers > 0.9).sum()}"


@pytest.mark.parametrize(
    ("name", "measure", "pairs"),
    [
        ("Figure 1", "spearman", ("l1-l2", "l2-gm", "l2-fermat")),
        ("Figure 2", "overlap", ("l1-l2", "l2-gm")),
        ("Figure 4", "spearman", ("l1-l2", "l1-gm", "l2-gm")),
    ],
)
def test_numbers_of_our_own_networks_are_those_of_the_report(name, measure, pairs):
    _, result, *_ = RESULTS[name]
    assert result.page == "docs/results/report/results.json"
    place = name == "Figure 4"
    halves = re.split("batch norm", result.ours)
    for half, normalization in zip(halves, ("batch_norm", "unitized"), strict=True):
        found = [of_networks(measure, normalization, pair)[place] for pair in pairs]
        printed = re.findall(r"(?<![l\d.])\d+(?:\.\d+ ± [\d.]+)?(?![\d.])", half)
        assert [number for number in printed if number in found] == found


def test_settings_that_depart_from_gaussian_filters_are_those_of_the_page():
    _, result, *_ = RESULTS["Figure 3, Table 3"]
    page = (ROOT / result.page).with_name("results.json")
    settings = json.loads(page.read_text(encoding="utf-8"))["settings"]
    after = {name: setting["after"] for name, setting in settings.items()}
    assert f"{len(after)} settings" in result.ours
    assert f"{sum(found['layers'] for found in after.values())} layers" in result.ours
    failing = {
        test: {name: found["fails"][test] / found["layers"] for name, found in after.items()}
        for test in ("normal", "spherical")
    }
    names = [name for name, share in failing["normal"].items() if share == 1]
    assert f"in {len(names)} all do ({', '.join(names)})" in result.ours
    counts = {test: [*shares.values()].count(0) for test, shares in failing.items()}
    assert f"in {counts['normal']} settings no trained layer rejects a Gaussian" in result.ours
    every = [*failing["spherical"].values()].count(1)
    assert (
        f"in {counts['spherical']} none rejects a covariance c²I, in {every} all do" in result.ours
    )


@pytest.mark.parametrize("result", RESULTS["Table 4"], ids=lambda result: result.page)
def test_spreads_of_the_criteria_are_those_of_the_page(result):
    page = json.loads((ROOT / result.page).with_name("results.json").read_text(encoding="utf-8"))
    for stage, words in (("fine-tuned", "points fine-tuned"), ("pruned", "pruned")):
        points = [100 * spread for spread in page["accuracy"]["spread"][stage]["values"]]
        assert f"{mean(points, 1)} {words}" in result.ours
    assert f"{page['settings']['seeds']} ResNet-8" in result.ours
