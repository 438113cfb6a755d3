"""Numbers of ours beside those of the unitization paper: those of the files that they name."""

import json
from pathlib import Path

import numpy as np
import pytest

from claims import PAPERS

ROOT = Path(__file__).parents[2]
OURS = {claim.name: " ".join(r.ours for r in claim.results) for claim in PAPERS["unitization"]}


@pytest.mark.parametrize("page", sorted({r.page for c in PAPERS["unitization"] for r in c.results}))
def test_the_pages_exist(page):
    assert (ROOT / page).is_file()


def test_tables_1_and_2_show_our_accuracies():
    for arm in ("batch_norm", "unitized"):
        path = ROOT / f"docs/results/train/cifar10-resnet20-{arm}/results.json"
        results = json.loads(path.read_text(encoding="utf-8"))
        assert f"({results['recipe']['epochs']} of 200 epochs, 1 run each" in OURS["Tables 1 and 2"]
        assert f"{100 * results['accuracy']['median']:.2f} %" in OURS["Tables 1 and 2"]


def test_the_range_of_alpha_is_that_of_trained_networks():
    path = ROOT / "docs/results/report/results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    alpha = results["training"]["unitized"]["alpha"]
    ours = OURS["Section 3.5, range of alpha"].replace("−", "-")
    assert f"{100 * alpha['outside']:.1f} % of the entries" in ours
    assert f"between {alpha['min']:.3f} and {alpha['max']:.3f}" in ours
    depth = results["settings"]["model"].removeprefix("preact")
    networks = len(results["training"]["unitized"]["test_accuracy"])
    assert f"in {networks} unitized ResNet-{depth} on digits" in ours


def test_algorithm_3_shows_our_ratios():
    path = ROOT / "docs/results/shift/estimators.json"
    pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
    ratios = {
        pair["name"]: np.mean(pair["estimates"]["Algorithm 3"]["values"]) / pair["distance"]
        for pair in pairs
    }
    assert f"on {len(pairs)} pairs" in OURS["Algorithm 3"]
    least, most = (f"{10**7 * find(ratios.values()):.1f}" for find in (min, max))
    assert f"between {least}·10⁻⁷ and {float(most) / 10:.1f}·10⁻⁶ of W" in OURS["Algorithm 3"]
    growth = [
        ratios[f"Gaussians, d = {d}, shift 8"] / ratios[f"Gaussians, d = {d}, shift 0.5"]
        for d in (1, 8, 64, 512)
    ]
    assert f"{min(growth):.0f} to {max(growth):.0f} times larger" in OURS["Algorithm 3"]
