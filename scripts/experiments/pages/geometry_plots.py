"""Figures 2 to 8 of Nachum et al. as panels: each function takes its part of the results."""

import numpy as np
from matplotlib.axes import Axes

from experiments.pages.plots import (
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    SMALL,
    Series,
    draw,
    mark,
    whole_numbers,
)

STARTS = {
    "default": Series("PyTorch's default start", SERIES[3], "^"),
    "he": Series("He's start", SERIES[1], "s", filled=False),
    "batch_norm": Series("batch norm", SERIES[0], "o"),
}
FIRST_LAYERS = {
    "he": Series("He's start", SERIES[1], "s", filled=False),
    "point": Series("one neuron per point", SERIES[0], "o"),
}
ODD = Series("the odd point, or its pairs", SERIES[1], "*")
OTHERS = Series("the others", SERIES[0], "o")
SAME = Series("no change", MUTED, "")
PARTS = {
    "standardize": "recentering and rescaling",
    "rescale_rms": "rescaling about zero alone",
    "rescale": "rescaling about the mean alone",
    "recenter": "recentering alone",
    "none": "neither",
}


def figure_2(results: dict) -> list[str]:
    """Accuracy after training, numerical rank and effective rank before, against depth."""
    layers = np.array(results["depths"]) + 1
    quantities = {
        "accuracy": ("training accuracy, %", 100),
        "rank": ("rank at the start", 1),
        "effective_rank": ("effective rank at the start", 1),
    }

    def paint(axes: Axes, quantity: str, scale: float) -> None:
        for start, series in STARTS.items():
            runs = scale * np.array(results[start][quantity])
            axes.plot(layers, runs.mean(1), color=series.colour, **mark(series))
            axes.fill_between(layers, runs.min(1), runs.max(1), color=series.colour, alpha=0.15)
        axes.set_ylim(bottom=0)
        whole_numbers(axes)

    return [
        draw(
            lambda axes, q=quantity, s=scale: paint(axes, q, s),
            name=f"figure-2-{quantity.replace('_', '-')}",
            title=title,
            xlabel="hidden layers",
            size=SMALL,
        )
        for quantity, (title, scale) in quantities.items()
    ]


def figure_3(results: dict) -> list[str]:
    points, odd = np.array(results["projection"]), results["index"]
    pairs = np.array(results["odd_pair"])

    def projection(axes: Axes) -> None:
        _both_ways(axes)
        axes.plot(*np.delete(points, odd, 0).T, "o", color=SERIES[0], ms=4.5, alpha=0.6, mew=0)
        axes.plot(*points[odd], "*", color=SERIES[1], ms=13, mec=PAPER, mew=0.8)

    def angles(axes: Axes) -> None:
        _both_ways(axes)
        before, after = np.array(results["before"]), np.array(results["after"])
        axes.plot([0, 95], [0, 95], color=MUTED, dashes=(4, 2), lw=1.1)
        axes.plot(before[~pairs], after[~pairs], "o", color=SERIES[0], ms=3, alpha=0.4, mew=0)
        axes.plot(before[pairs], after[pairs], "*", color=SERIES[1], ms=7, mew=0)

    last = results["layers"][-1]
    return [
        draw(
            projection,
            name="figure-3-a",
            title=f"batch after layer {last}, random plane",
            xlabel="the same scale in both directions",
        ),
        draw(
            angles,
            name="figure-3-b",
            title=f"angles after layer {last}, degrees",
            xlabel=f"angles after layer {last - 1}, degrees",
        ),
    ]


def figure_4(results: dict) -> list[str]:
    """Every neuron's values over the five points, its mean marked, layer by layer."""

    def paint(axes: Axes, neurons: list) -> None:
        for i, values in enumerate(neurons):
            axes.plot(values, np.full(len(values), i), "-", color=GRID, lw=1.2)
            axes.plot(values, np.full(len(values), i), "o", color=SERIES[0], alpha=0.75, mew=0)
            axes.plot(np.mean(values), i, "|", color=SERIES[1], ms=13, mew=2)
        axes.set_yticks(range(len(neurons)))
        axes.set_ylim(len(neurons) - 0.4, -0.6)

    return [
        draw(
            lambda axes, neurons=neurons: paint(axes, neurons),
            name=f"figure-4-{depth}",
            title=f"neurons of layer {depth}",
            xlabel="value",
        )
        for depth, neurons in enumerate(results["layers"])
    ]


def figure_5(results: dict) -> list[str]:
    """Angles of pairs before and after layer 30, for each combination of parts."""

    def paint(axes: Axes, part: dict) -> None:
        _both_ways(axes)
        low, high = min(part["before"]), max(part["before"])
        axes.plot([low, high], [low, high], color=MUTED, dashes=(4, 2), lw=1.1)
        axes.plot(part["before"], part["after"], "o", color=SERIES[0], ms=2.6, alpha=0.35, mew=0)

    return [
        draw(
            lambda axes, part=results["parts"][name]: paint(axes, part),
            name=f"figure-5-{name.replace('_', '-')}",
            title=title,
            xlabel=f"angle after layer {results['layer'] - 1}; up: after {results['layer']}",
            size=SMALL,
        )
        for name, title in PARTS.items()
    ]


def figure_6(results: dict) -> list[str]:
    """How many inputs make one neuron that active."""

    def paint(axes: Axes, values: list) -> None:
        axes.hist(values, bins=20, color=SERIES[0], alpha=0.45)
        axes.axvline(float(np.mean(values)), color=SERIES[1], lw=1.5)

    return [
        draw(
            lambda axes, part=results["parts"][name]: paint(axes, part["neuron"]),
            name=f"figure-6-{name.replace('_', '-')}",
            title=f"inputs; {PARTS[name]}",
            xlabel="activity of one neuron; upright line: its mean",
        )
        for name in ("rescale_rms", "standardize")
    ]


def figures_7_and_8(results: dict) -> list[str]:
    """A neuron's values over five points, and its two children's."""

    def paint(axes: Axes, rows: dict) -> None:
        lines = (("neuron", INK, "o"), ("positive", SERIES[0], "^"), ("negative", SERIES[1], "s"))
        for name, colour, marker in lines:
            points = np.arange(len(rows[name])) + 1
            axes.plot(points, rows[name], color=colour, marker=marker, label=name, lw=1.2)
        axes.axhline(np.mean(rows["neuron"]), color=MUTED, dashes=(4, 2), lw=1.1)
        axes.legend(frameon=False, labelcolor="linecolor", fontsize=9.5)
        whole_numbers(axes)

    titles = {"7": "a neuron of two values", "8": "a neuron of three values"}
    return [
        draw(
            lambda axes, rows=results[figure]: paint(axes, rows),
            name=f"figure-{figure}",
            title=f"{title}, and its children",
            xlabel="point; dashed: the neuron's mean",
        )
        for figure, title in titles.items()
    ]


def neuron_per_point(results: dict) -> list[str]:
    epochs = np.arange(results["epochs"]) + 1

    def paint(axes: Axes, start: int) -> None:
        for name, series in FIRST_LAYERS.items():
            runs = 100 * np.array(results[name])[:, start:]
            every = {"markevery": max(1, len(epochs) // 10), **mark(series)}
            axes.plot(epochs[start:], runs.mean(0), color=series.colour, **every)
            band = runs.min(0), runs.max(0)
            axes.fill_between(epochs[start:], *band, color=series.colour, alpha=0.15)
        whole_numbers(axes)

    half = len(epochs) // 2
    titles = {0: "test accuracy, %", half: "the same, later half, %"}
    return [
        draw(
            lambda axes, start=start: paint(axes, start),
            name=f"per-point-{start}",
            title=title,
            xlabel="epoch",
        )
        for start, title in titles.items()
    ]


def _both_ways(axes: Axes) -> None:
    axes.grid(color=GRID)
    axes.set_aspect("equal", adjustable="datalim")
