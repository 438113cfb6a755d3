"""Numbers of ours beside Figure 2 of "Batch Normalization Decomposed": those of its page."""

import json
import statistics
from pathlib import Path

from claims import PAPERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/results/geometry/results.json"


def test_figure_2_shows_our_accuracies_and_ranks():
    (claim,) = (claim for claim in PAPERS["bn-decomposed"] if claim.name == "Figure 2")
    (result,) = claim.results
    figure = json.loads(PAGE.read_text(encoding="utf-8"))["figure_2"]

    def shown(start: str) -> str:
        deepest = figure[start]["accuracy"][-1]
        error = statistics.stdev(deepest) / len(deepest) ** 0.5
        return f"{statistics.mean(deepest):.4f} ± {error:.4f}".replace("0.", ".")

    he, batch_norm, default = (
        figure[start]["rank"][-1] for start in ("he", "batch_norm", "default")
    )
    assert f"{figure['depths'][-1] + 1} hidden layers, {figure['runs']} runs" in result.ours
    assert f"{shown('he')} from rank {he[0]:.0f} and {he[1]:.0f} of 128" in result.ours
    effective = {f"{rank:.1f}" for rank in figure["he"]["effective_rank"][-1]}
    assert effective == {"1.1"}
    assert "(effective rank 1.1)" in result.ours
    assert set(batch_norm) == {128}
    assert f"{shown('batch_norm')} from rank 128 with batch norm" in result.ours
    assert set(default) == {1}
    assert f"{shown('default')} from rank 1 with PyTorch's start" in result.ours
    steps, depths = f"{figure['steps']:,}", len(figure["depths"])
    assert f"{steps} of 35,100 steps, {depths} of 17 depths" in claim.reason
