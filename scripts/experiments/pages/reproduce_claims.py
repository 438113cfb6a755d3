"""Make the sections of the report that are about the papers' claims and the odd point."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import plots, theorems as theorem_page
from experiments.pages.page import figure, paragraphs
from experiments.pages.plots import GRID, MUTED, PAPER, SERIES, SMALL, Series, draw, floats
from experiments.pages.sentences import number


def claims(results: dict) -> str:
    claims = results["claims"]
    papers = {claim["paper"] for claim in claims}
    return (
        paragraphs(
            f"{len(claims)} claims of {len(papers)} papers that are wrong or inaccurate as "
            "printed, and for which a few random draws show this. scripts/check_theorems.py "
            "checks every numbered statement of the three papers."
        )
        + theorem_page.overview(claims)
        + paragraphs(claims_sentence(claims))
    )


def claims_sentence(claims: Sequence[dict]) -> str:
    """A sentence with the number of claims whose outcome agrees with the recorded verdict."""
    recorded = sum(claim["as_recorded"] for claim in claims)
    return (
        f"{recorded} of these {len(claims)} claims have the recorded outcome: the draws reject a "
        "printed form that is wrong, and do not reject the corrected form."
    )


def odd_point(results: dict) -> str:
    network, tree = results["odd_point"]["network"], results["odd_point"]["tree"]
    legend = (
        Series("the longest point", SERIES[1], "*"),
        Series("the other points", SERIES[0], "o"),
        Series(f"{network['points'] - 1}, as in the invariant representation", MUTED, ""),
    )
    return paragraphs(
        f"{network['points']} points pass through {network['depth']:,} random layers of "
        f"recentering and ReLU, {network['width']:,} wide; {tree['points']} scalars pass through "
        f"the recentering tree to depth {tree['depth']:,}. The paper on batch normalization's "
        "parts says that one point escapes at a right angle while the others gather."
    ) + figure(
        [_projection_plot(network), _norm_ratio_plot(network), _tree_plot(tree)],
        odd_point_sentence(results["odd_point"]),
        legend,
        "three",
    )


def _projection_plot(network: dict) -> str:
    """A plot of the batch after the last layer, projected to two dimensions."""

    def paint(axes: Axes) -> None:
        axes.grid(color=GRID)
        axes.set_aspect("equal", adjustable="datalim")
        axes.plot(*floats(network["projection"]).T, "o", color=SERIES[0], ms=4.5, alpha=0.6, mew=0)
        _star(axes, *network["projection"][network["index"]])

    return draw(
        paint,
        name="projection",
        title="last batch, principal plane",
        xlabel="the same scale in both directions",
        size=SMALL,
    )


def _norm_ratio_plot(network: dict) -> str:
    """A plot, over layers, of the longest point's norm divided by the others' mean norm."""

    def paint(axes: Axes) -> None:
        ratios = floats(network["norm_ratio"])
        axes.plot(np.arange(len(ratios)) + 1, ratios, color=SERIES[1])
        axes.axhline(network["points"] - 1, color=MUTED, dashes=(4, 2), lw=1.3)
        plots.log_scale(axes)

    return draw(
        paint,
        name="norm-ratio",
        title="norm, over the others' mean",
        xlabel=f"layer, 1 to {network['depth']}",
        size=SMALL,
    )


def _tree_plot(tree: dict) -> str:
    """A plot of the norms that the points have deep in the recentering tree."""

    def paint(axes: Axes) -> None:
        inputs, norms = floats(tree["inputs"]), floats(tree["norms"])
        axes.vlines(inputs, 0, norms, color=SERIES[0], lw=1.2, alpha=0.6)
        axes.plot(inputs, norms, "o", color=SERIES[0])
        _star(axes, tree["inputs"][tree["index"]], tree["norms"][tree["index"]])

    return draw(
        paint,
        name="tree",
        title="tree: norm, largest is 1",
        xlabel="input of the point",
        size=SMALL,
    )


def _star(axes: Axes, x: float, y: float) -> None:
    axes.plot(x, y, "*", color=SERIES[1], ms=13, mec=PAPER, mew=0.8)


def odd_point_sentence(results: dict) -> str:
    """A sentence about the longest points of the random network and of the tree."""
    network, tree = results["network"], results["tree"]
    ratio = number(network["norm_ratio"][-1], 3)
    angle, spread = (number(network[f"{key}_degrees"], 3) for key in ("angle", "spread"))
    state = "one point has become odd" if network["is_odd"] else "no point has become odd"
    ends = "not at the right angle of Theorem 11"
    if abs(tree["angle_ends_degrees"] - 90) < 0.5:
        ends = "at a right angle, as Theorem 11 says"
    return (
        f"After {network['depth']} layers {state}: the longest is {ratio} times as long as the "
        f"mean of the others and {angle}° away from them, while they lie {spread}° apart; in the "
        f"tree the ratio is {number(tree['norm_ratio'], 3)} and the two ends stand "
        f"{number(tree['angle_ends_degrees'], 4)}° apart, {ends}."
    )
