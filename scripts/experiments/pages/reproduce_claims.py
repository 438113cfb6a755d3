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
    return paragraphs(
        f"We checked {len(claims)} claims of {len(papers)} papers that are wrong or inaccurate "
        "as printed, and for which a few random draws show this. "
        f"{claims_sentence(claims)} The command scripts/check_theorems.py checks every "
        "numbered statement of the three papers."
    ) + theorem_page.overview(claims)


def claims_sentence(claims: Sequence[dict]) -> str:
    """Sentences with the number of claims whose outcome agrees with the recorded verdict."""
    recorded = sum(claim["as_recorded"] for claim in claims)
    return (
        f"{recorded} of these {len(claims)} claims have the recorded outcome. A recorded outcome "
        "is that the draws reject a wrong printed form, and do not reject the corrected form."
    )


def odd_point(results: dict) -> str:
    network, tree = results["odd_point"]["network"], results["odd_point"]["tree"]
    legend = (
        Series("the longest point", SERIES[1], "*"),
        Series("the other points", SERIES[0], "o"),
        Series(f"{network['points'] - 1}, as in the invariant representation", MUTED, ""),
    )
    return paragraphs(
        "The paper Batch Normalization Decomposed says that in a deep random network, one point "
        "moves to a right angle to all other points, while the others gather. To check this, we "
        f"passed {network['points']} points through {network['depth']:,} random layers of "
        f"recentering and ReLU, each of width {network['width']:,}. We also passed "
        f"{tree['points']} scalars through the recentering tree to depth {tree['depth']:,}. In the "
        "tree, each neuron has one child for the values above its mean and one child for the "
        "values below. We call a point odd if its norm is at least (n − 1)/2 times the mean norm "
        "of the n − 1 others, its mean angle to them is at least 80°, and their mean angle to each "
        f"other is at most 45°. {odd_point_sentence(results['odd_point'])}"
    ) + figure(
        [_projection_plot(network), _norm_ratio_plot(network), _tree_plot(tree)],
        "Left: the points after the last layer, projected to their two principal components. "
        "Middle: the norm of the longest point divided by the mean norm of the others, in each "
        "layer. Right: the norms of the points in the tree, divided by the largest norm.",
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
    """Sentences about the longest points of the random network and of the tree."""
    network, tree = results["network"], results["tree"]
    ratio = number(network["norm_ratio"][-1], 3)
    angle, spread = (number(network[f"{key}_degrees"], 3) for key in ("angle", "spread"))
    state = "one point has become odd" if network["is_odd"] else "no point has become odd"
    ends = "which is not the right angle of Theorem 11"
    if abs(tree["angle_ends_degrees"] - 90) < 0.5:
        ends = "as Theorem 11 says"
    return (
        f"After {network['depth']} layers, {state}. The norm of the longest point is {ratio} times "
        f"the mean norm of the others. Its mean angle to the others is {angle}°, and the mean "
        f"angle between two of the others is {spread}°. In the tree, the longest point "
        f"has {number(tree['norm_ratio'], 3)} times the mean norm of the others. The angle between "
        "the points with the smallest and the largest input is "
        f"{number(tree['angle_ends_degrees'], 4)}°, {ends}."
    )
