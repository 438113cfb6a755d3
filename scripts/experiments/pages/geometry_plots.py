"""Draw Figures 2 to 8 of Nachum et al. as panels; each function takes one figure's results."""

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import plots
from experiments.pages.plots import GRID, INK, MUTED, PAPER, SERIES, SMALL, Series, panels

STARTS = {
    "default": Series("PyTorch's default weights", SERIES[3], "^"),
    "he": Series("He et al.'s weights", SERIES[1], "s", filled=False),
    "batch_norm": Series("batch norm, Adam", SERIES[0], "o"),
    "batch_norm_sgd": Series("batch norm, SGD", SERIES[2], "D"),
}
FIRST_LAYERS = {
    "he": Series("He et al.'s initialization", SERIES[1], "s", filled=False),
    "point": Series("one neuron per point", SERIES[0], "o"),
}
ODD = Series("the odd point, or pairs with the odd point", SERIES[1], "*")
OTHERS = Series("the other points, or pairs of other points", SERIES[0], "o")
SAME = Series("the angle does not change", MUTED, "")
PARTS = {
    "standardize": "recentering and rescaling",
    "rescale_rms": "rescaling about zero alone",
    "rescale": "rescaling about the mean alone",
    "recenter": "recentering alone",
    "none": "no normalization",
}


def figure_2(results: dict) -> list[str]:
    """Panels of accuracy after training, and of two ranks before training, for each depth."""
    layers = np.array(results["depths"]) + 1
    titles = {
        "accuracy": "training accuracy, %",
        "rank": "rank at the start",
        "effective_rank": "effective rank at the start",
    }

    def paint(axes: Axes, quantity: str) -> None:
        scale = 100 if quantity == "accuracy" else 1
        for start, series in STARTS.items():
            _over_runs(axes, layers, scale * np.array(results[start][quantity]).T, series)
        axes.set_ylim(bottom=0)

    return panels(paint, titles, name="figure-2", xlabel="hidden layers", size=SMALL)


def figure_3(results: dict) -> list[str]:
    batch, odd = np.array(results["projection"]), results["index"]
    pairs = np.array(results["odd_pair"])

    def projection(axes: Axes) -> None:
        axes.grid(color=GRID)
        axes.set_aspect("equal", adjustable="datalim")
        axes.plot(*np.delete(batch, odd, 0).T, "o", color=SERIES[0], ms=4.5, alpha=0.6, mew=0)
        axes.plot(*batch[odd], "*", color=SERIES[1], ms=13, mec=PAPER, mew=0.8)

    def angles(axes: Axes) -> None:
        axes.grid(color=GRID)
        axes.set(xlim=(0, 95), ylim=(0, 95))
        before, after = np.array(results["before"]), np.array(results["after"])
        axes.plot([0, 95], [0, 95], color=MUTED, dashes=(4, 2), lw=1.1)
        axes.plot(before[~pairs], after[~pairs], "o", color=SERIES[0], ms=3, alpha=0.4, mew=0)
        axes.plot(before[pairs], after[pairs], "*", color=SERIES[1], ms=7, mew=0)

    last = results["layers"][-1]
    return [
        plots.draw(
            projection,
            name="figure-3-a",
            title=f"batch after layer {last}, random plane",
            xlabel="the same scale in both directions",
        ),
        plots.draw(
            angles,
            name="figure-3-b",
            title=f"angles after layer {last}, degrees",
            xlabel=f"angles after layer {last - 1}, degrees",
        ),
    ]


def figure_4(results: dict) -> list[str]:
    """A panel for each layer, with each neuron's values for five points and their mean."""

    layers = results["layers"]

    def paint(axes: Axes, layer: int) -> None:
        neurons = layers[layer]
        for i, values in enumerate(neurons):
            axes.plot(values, np.full(len(values), i), "-", color=GRID, lw=1.2)
            axes.plot(values, np.full(len(values), i), "o", color=SERIES[0], alpha=0.75, mew=0)
            axes.plot(np.mean(values), i, "|", color=SERIES[1], ms=13, mew=2)
        axes.set_yticks(range(len(neurons)))
        axes.set_ylim(len(neurons) - 0.4, -0.6)

    titles = {layer: f"neurons of layer {layer}" for layer in range(len(layers))}
    return panels(paint, titles, name="figure-4", xlabel="value")


def figure_5(results: dict) -> list[str]:
    """Panels that compare the angles of pairs of samples before and after layer 30.

    There is a panel for each combination of recentering and rescaling.
    """

    def paint(axes: Axes, name: str) -> None:
        part = results["parts"][name]
        axes.grid(color=GRID)
        low, high = min(part["before"]), max(part["before"])
        axes.plot([low, high], [low, high], color=MUTED, dashes=(4, 2), lw=1.1)
        axes.plot(part["before"], part["after"], "o", color=SERIES[0], ms=2.6, alpha=0.35, mew=0)

    xlabel = f"degrees after layer {results['layer'] - 1}; up: after {results['layer']}"
    return panels(paint, PARTS, name="figure-5", xlabel=xlabel, size=SMALL)


def figure_6(results: dict) -> list[str]:
    """Panels with histograms of one neuron's outputs, without and with recentering."""

    def paint(axes: Axes, name: str) -> None:
        values = results["parts"][name]["neuron"]
        axes.hist(values, bins=20, color=SERIES[0], alpha=0.45)
        axes.axvline(float(np.mean(values)), color=SERIES[1], lw=1.5)

    titles = {name: f"inputs, {PARTS[name]}" for name in ("rescale_rms", "standardize")}
    xlabel = "output of a neuron; upright line: mean"
    return panels(paint, titles, name="figure-6", xlabel=xlabel)


def figures_7_and_8(results: dict) -> list[str]:
    """Panels with the values of a neuron and of its two children for five points."""

    def paint(axes: Axes, number: str) -> None:
        rows = results[number]
        lines = (("neuron", INK, "o"), ("positive", SERIES[0], "^"), ("negative", SERIES[1], "s"))
        for name, colour, marker in lines:
            style = {"color": colour, "marker": marker, "label": name, "lw": 1.2}
            axes.plot(np.arange(len(rows[name])) + 1, rows[name], **style)
        axes.axhline(np.mean(rows["neuron"]), color=MUTED, dashes=(4, 2), lw=1.1)
        axes.legend(frameon=False, labelcolor="linecolor", fontsize=9.5)
        plots.whole_numbers(axes)

    titles = {
        "7": "a neuron of two values, and its children",
        "8": "a neuron of three values, and its children",
    }
    return panels(paint, titles, name="figure", xlabel="point; dashed: the neuron's mean")


def neuron_per_point(results: dict) -> list[str]:
    epochs = np.arange(results["epochs"]) + 1

    def paint(axes: Axes, start: int) -> None:
        for name, series in FIRST_LAYERS.items():
            runs = 100 * np.array(results[name])[:, start:]
            _over_runs(axes, epochs[start:], runs, series, markevery=max(1, len(epochs) // 10))

    titles = {0: "test accuracy, %", len(epochs) // 2: "the same, later half, %"}
    return panels(paint, titles, name="per-point", xlabel="epoch")


def _over_runs(axes: Axes, x: np.ndarray, runs: np.ndarray, series: Series, **style: int) -> None:
    """Draw the mean of `runs` (runs, points) against `x`, with a band from minimum to maximum."""
    plots.points(axes, x, runs.mean(0), series, **style)
    axes.fill_between(x, runs.min(0), runs.max(0), color=series.colour, alpha=0.15)
    plots.whole_numbers(axes)
