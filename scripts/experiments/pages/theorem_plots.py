"""Figures of the page of theorems: curves that say more than one number, and their data."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import geometry
import pruning
from experiments.pages.plots import MUTED, SERIES, Series, draw, log_scale, points
from geometry.claims import distance_bounds

EXACT = Series("l1/l2, exact", SERIES[0], "o")
INVERSE = Series("l2/l1, exact", SERIES[1], "s")
PRINTED = Series("as printed", SERIES[2], "^")
LIMIT = Series("corrected limit", MUTED, "")
# Pairs of the paper's criteria, whose rank correlation has a theory.
PAIRS = tuple(itertools.combinations(("l1", "l2", "fermat", "gm"), 2))
PAIR_SERIES = {
    pair: Series(f"{pair[0]} and {pair[1]}", colour, marker)
    for pair, colour, marker in zip(PAIRS, SERIES, ("o", "s", "^", "*", "D", "o"), strict=True)
}
ENDS = Series("inner sample and the nearer end", SERIES[0], "o")
INNER = Series("two inner samples", SERIES[1], "s")
BOUND = Series("Theorem 1 as printed", SERIES[2], "^")
SHARP = Series("√(S + S′ + D²)", SERIES[0], "o")

SIZES = (4, 9, 16, 36, 64, 144, 256, 576, 1024, 2304)
FILTERS = (8, 16, 32, 64, 128, 256, 512)
DEPTHS = (1, 3, 10, 30, 100)

Plot = tuple[str, str, tuple[Series, ...]]
"""Panel, caption and legend."""


def curves() -> dict[str, Any]:
    """The numbers of all figures, by the function of the check that they belong to."""
    x = jnp.asarray(np.sort(np.random.default_rng(0).normal(size=6)), jnp.float32)
    angles = [np.asarray(_tree_angles(x, depth)).tolist() for depth in DEPTHS]
    distance, printed, sharp = distance_bounds()
    return {
        "theorem_1_bound": {
            "n": SIZES,
            "variances": [pruning.l1_l2_ratio_variance(n) for n in SIZES],
        },
        "limit_of_spearman": {
            "filters": FILTERS,
            "spearman": [
                [float(pruning.expected_spearman(n, 576.0, pair)) for n in FILTERS]
                for pair in PAIRS
            ],
        },
        "merged_interior": {"depths": DEPTHS, "degrees": angles},
        "moment_bounds_sharp": {
            "distance": distance.tolist(),
            "printed": printed.tolist(),
            "sharp": sharp.tolist(),
        },
    }


@partial(jax.jit, static_argnames="depth")
def _tree_angles(x: jax.Array, depth: int) -> jax.Array:
    """Degrees of an inner sample with the better end, and of two inner ones."""
    g = geometry.tree_gram(x, depth).gram
    norms = jnp.sqrt(jnp.diagonal(g))
    degrees = jnp.degrees(jnp.arccos(jnp.clip(g / norms[:, None] / norms[None], -1, 1)))
    return jnp.stack([jnp.maximum(degrees[2, 0], degrees[2, -1]), degrees[2, 3]])


def plot(function: str, numbers: dict[str, Any]) -> Plot:
    """The figure of the check that `function` draws or computes."""
    return PLOTS[function](numbers)


def _variances(numbers: dict[str, Any]) -> Plot:
    n, variances = np.array(numbers["n"]), np.array(numbers["variances"])

    def paint(axes: Axes) -> None:
        for column, series in enumerate((EXACT, INVERSE)):
            points(axes, n, n * variances[:, column], series)
        points(axes, n, np.full(len(n), (np.pi - 1) / 2), PRINTED)
        axes.axhline((np.pi - 3) / 2, color=MUTED, ls="--", lw=1)
        axes.set_xscale("log")
        log_scale(axes)

    panel = draw(
        paint, name="ratio-variance", title="n × variance of the ratio", xlabel="dimension n"
    )
    caption = (
        "The proof's (π − 1)/2 is the value of independent norms; the norms of one filter have "
        "(π − 3)/2, fifteen times less."
    )
    return panel, caption, (EXACT, INVERSE, PRINTED, LIMIT)


def _spearman(numbers: dict[str, Any]) -> Plot:
    def paint(axes: Axes) -> None:
        for values, series in zip(numbers["spearman"], PAIR_SERIES.values(), strict=True):
            points(axes, numbers["filters"], values, series)
        axes.axhline(0.930078, color=MUTED, ls="--", lw=1)
        axes.set_xscale("log")

    panel = draw(
        paint, name="spearman", title="expected Spearman's ρ", xlabel="filters of 576 dimensions"
    )
    caption = (
        "Gaussian filters: pairs with Fermat or GM agree more the more filters there are; l1 and "
        "l2 do not pass 0.9301, however many the filters and the dimensions."
    )
    return panel, caption, tuple(PAIR_SERIES.values())


def _tree(numbers: dict[str, Any]) -> Plot:
    degrees = np.array(numbers["degrees"])

    def paint(axes: Axes) -> None:
        for column, series in enumerate((ENDS, INNER)):
            points(axes, numbers["depths"], degrees[:, column], series)
        axes.axhline(90, color=MUTED, ls="--", lw=1)
        axes.set_xscale("log")

    panel = draw(paint, name="tree-angles", title="angle, degrees", xlabel="layer of the tree")
    caption = "Six Gaussian points: inner samples merge, and come near a right angle with one end."
    return panel, caption, (ENDS, INNER)


def _bounds(numbers: dict[str, Any]) -> Plot:
    distance = np.array(numbers["distance"])

    def paint(axes: Axes) -> None:
        for name, series in (("printed", BOUND), ("sharp", SHARP)):
            points(axes, distance, numbers[name], series, ls="")
        ends = [distance.min(), distance.max()]
        axes.plot(ends, ends, color=MUTED, ls="--", lw=1)
        axes.set_xscale("log")
        log_scale(axes)

    panel = draw(paint, name="distance-bounds", title="bound", xlabel="exact distance W")
    caption = (
        "Heavy-tailed pairs of discrete distributions: no bound lies below the dashed line, and "
        "the printed one has no unit: it is far off at both ends."
    )
    return panel, caption, (BOUND, SHARP)


PLOTS = {
    "theorem_1_bound": _variances,
    "limit_of_spearman": _spearman,
    "merged_interior": _tree,
    "moment_bounds_sharp": _bounds,
}
