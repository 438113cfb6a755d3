"""Compute and draw small figures that compare true values with the values that papers print.

The numbers of a figure are stored in results.json. The values of the horizontal axis come first.
The values of each line follow, under the label of the line. To add a figure, add a line to
`FIGURES`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import geometry
import pruning
from claims.unitization import distance_bounds
from experiments.pages.plots import MUTED, SERIES, SMALL, Series, draw, log_scale, points, swatch
from jaxnorm import unitize, unitize_bounded

Numbers = dict[str, list[float]]
SIZES = (4, 9, 16, 36, 64, 144, 256, 576, 1024, 2304)
SCALES = np.geomspace(1, 300, 9)


class Figure(NamedTuple):
    """A figure: its numbers, and how they are plotted.

    Attributes:
      numbers: The function that returns the numbers of the figure, with the values of the
        horizontal axis first.
      title: Quantity and unit of the vertical axis.
      xlabel: The quantity and the unit of the horizontal axis.
      logarithmic: The letters of the axes that are logarithmic, from "xy".
      joined: Whether points are joined by lines.
      reference: The label of the dashed line, which shows the printed value.
    """

    numbers: Callable[[], Numbers]
    title: str
    xlabel: str
    logarithmic: str = ""
    joined: bool = True
    reference: str = ""


def curves() -> dict[str, Numbers]:
    """The numbers of all figures; the names of the figures are the keys."""
    with jax.enable_x64(True):
        return {name: figure.numbers() for name, figure in FIGURES.items()}


def plot(name: str, numbers: Numbers) -> str:
    """Draw a figure with its legend, and return it as HTML."""
    figure = FIGURES[name]
    (_, x), *lines = numbers.items()
    series = [
        Series(label, MUTED, "")
        if label == figure.reference
        else Series(label, SERIES[i], "os^"[i])
        for i, (label, _) in enumerate(lines)
    ]

    def paint(axes: Axes) -> None:
        for (_, values), line in zip(lines, series, strict=True):
            dashed = "--" if line.label == figure.reference else "-"
            points(axes, x, values, line, ls=dashed if figure.joined else "")
        if "x" in figure.logarithmic:
            axes.set_xscale("log")
        if "y" in figure.logarithmic:
            log_scale(axes)

    panel = draw(paint, name=name, title=figure.title, xlabel=figure.xlabel, size=SMALL)
    return f'<div class="legend">{"".join(map(swatch, series))}</div>{panel}'


def _bounds() -> Numbers:
    distance, printed, sharp = distance_bounds()
    return {
        "W": distance.tolist(),
        "Theorem 1": (printed / distance).tolist(),
        "√(S + S′ + D²)": (sharp / distance).tolist(),
    }


def _unbounded() -> Numbers:
    lengths = jnp.asarray(SCALES)[:, None]
    return {
        "R": SCALES.tolist(),
        "Equation 10": (2 * unitize(lengths, 0.5, eps=0.0))[:, 0].tolist(),
        "Equation 9": (2 * unitize_bounded(lengths, jnp.asarray(0.5)))[:, 0].tolist(),
        "2/α": [4.0] * len(SCALES),
    }


def _ratio_variances() -> Numbers:
    variances = [pruning.l1_l2_ratio_variance(n) for n in SIZES]
    return {
        "n": list(SIZES),
        "l1/l2": [n * both.direct for n, both in zip(SIZES, variances, strict=True)],
        "l2/l1": [n * both.inverse for n, both in zip(SIZES, variances, strict=True)],
        "the proof’s": [(math.pi - 1) / 2] * len(SIZES),
    }


def _spearman() -> Numbers:
    dims = [float(n) for n in SIZES]
    return {
        "n": dims,
        "l1 and l2": [float(pruning.expected_spearman(512, n, ("l1", "l2"))) for n in dims],
        "full agreement": [1.0] * len(dims),
    }


def _shared_point() -> Numbers:
    counts = (2, 5, 10, 20, 50, 100, 200)
    limit = partial(pruning.gaussian.norm_sum_ratio_variance_limit, dims=100)
    return {
        "n": list(counts),
        "(1 + 3/n)/(8k)": [limit(n, shared=True).direct for n in counts],
        "1/(2nk)": [limit(n).direct for n in counts],
    }


def _spreads() -> Numbers:
    counts = (10, 20, 50, 100, 200, 500)
    spreads = [math.degrees(geometry.odd_points.odd_state(n).spread) for n in counts]
    return {
        "n": list(counts),
        "odd state": spreads,
        "3π/n": [540 / n for n in counts],
        "as printed": [0.0] * len(counts),
    }


def _growth() -> Numbers:
    """How distances in the cluster grow over layers, near the invariant representation.

    There are 10 samples. The growth is the square root of the sum of squared distances, divided by
    the same square root before the first layer. The weights have the variance of Theorem 13 of
    "Batch Normalization Decomposed".
    """
    n, layers = 10, (0, 1, 2, 5, 10, 20, 50, 100)
    x = np.array(geometry.invariant_representation(n, 3))
    x[1:] += 1e-5 * np.random.default_rng(0).normal(size=(n - 1, 3))
    gram, found = jnp.asarray(x @ x.T), {}
    for layer in range(layers[-1] + 1):
        found[layer] = math.sqrt(_squared_distances(np.asarray(gram)[1:, 1:]))
        gram = geometry.odd_points.cluster_growth(n) * geometry.mean_field_step(gram)
    return {
        "layer": list(layers),
        "n = 10": [found[layer] / found[0] for layer in layers],
        "as printed, at most": [1.0] * len(layers),
    }


def _squared_distances(gram: np.ndarray) -> float:
    square = np.diag(gram)
    return float((square[:, None] + square[None] - 2 * gram).sum())


def _waiting() -> Numbers:
    counts = list(range(1, 9))
    return {
        "k": [float(k) for k in counts],
        "P(y₂ = 0 | y₁ = k)": [1 - 2.0 ** (1 - k) for k in counts],
        "if independent": [1 / 3] * len(counts),
    }


def _dimensions() -> Numbers:
    dims = [float(2**k) for k in range(11)]
    return {
        "d": dims,
        "the bound 2d + 2": [(2 * d + 2) / d**0.5 for d in dims],
        "largest W": [2**0.5] * len(dims),
    }


FIGURES = {
    "bounds": Figure(_bounds, "bound over W", "exact distance W", "xy", joined=False),
    "dimensions": Figure(
        _dimensions, "distance over √d, the size of an output", "dimension d", "xy"
    ),
    "unbounded": Figure(
        _unbounded, "distance W of the outputs", "length R of both inputs", "xy", reference="2/α"
    ),
    "ratio-variance": Figure(
        _ratio_variances, "n × variance of the ratio", "dimension n", "xy", reference="the proof’s"
    ),
    "spearman": Figure(
        _spearman,
        "expected Spearman's ρ",
        "dimension n, 512 filters",
        "x",
        reference="full agreement",
    ),
    "shared-point": Figure(
        _shared_point, "variance, k = 100", "number n of vectors", "xy", reference="1/(2nk)"
    ),
    "spread": Figure(
        _spreads, "angle in the cluster, degrees", "points n", "x", reference="as printed"
    ),
    "growth": Figure(
        _growth,
        "distance in the cluster, over that at the start",
        "layer",
        "y",
        reference="as printed, at most",
    ),
    "waiting": Figure(
        _waiting, "probability", "rows k until the first is active", reference="if independent"
    ),
}
