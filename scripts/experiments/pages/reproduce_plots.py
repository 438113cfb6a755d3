"""The report's figures: each function takes the results and returns its panels as SVG.

Two arms, batch norm and unitized batch norm, keep their colour and marker on the whole page, and
so do the four criteria. A line is the mean over seeds, the band or bar about it one standard error.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import plots
from experiments.pages.plots import (
    BAND,
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    SMALL,
    Series,
    curve,
    draw,
    line,
    mark,
    mark_drops,
)

ARMS = {
    "batch_norm": Series("batch norm", SERIES[0], "o"),
    "unitized": Series("unitized batch norm", SERIES[1], "s", filled=False),
}
CRITERIA = {
    "l1": Series("l1", SERIES[2], "o"),
    "l2": Series("l2", SERIES[3], "s", filled=False),
    "fermat": Series("Fermat", SERIES[4], "^"),
    "gm": Series("GM", SERIES[5], "D", filled=False),
}
GAUSSIAN = Series("expected of Gaussian filters", MUTED, "")
QUANTITIES = {"mean": "mean", "var": "variance", "skewness": "skewness", "kurtosis": "kurtosis"}


def pair_label(pair: str) -> str:
    """`"l1-fermat"` as people write it: l1 and Fermat."""
    return " and ".join(CRITERIA[name].label for name in pair.split("-"))


def accuracy(training: dict) -> list[str]:
    """Test accuracy over all epochs, the same from the middle of training on, training loss."""
    epochs = len(training["learning_rate"])
    start = min(epochs // 2, epochs - 1)

    def over_epochs(axes: Axes, quantity: str, scale: float, start: int) -> None:
        for arm, series in ARMS.items():
            runs = scale * _array(training[arm][quantity])[:, start:]
            curve(axes, np.arange(start, epochs) + 1, runs, series)
        mark_drops(axes, training["learning_rate"], training["drops"], start)

    def loss(axes: Axes) -> None:
        over_epochs(axes, "train_loss", 1, 0)
        plots.log_scale(axes)

    return [
        draw(
            lambda axes: over_epochs(axes, "test_accuracy", 100, 0),
            name="accuracy",
            title="test accuracy, %",
            xlabel="epoch",
            size=SMALL,
        ),
        draw(
            lambda axes: over_epochs(axes, "test_accuracy", 100, start),
            name="accuracy-late",
            title="the same, later half, %",
            xlabel="epoch",
            size=SMALL,
        ),
        draw(loss, name="loss", title="training loss, nats", xlabel="epoch", size=SMALL),
    ]


def moments(results: dict) -> list[str]:
    """Median and quartiles over channels of four moments of one layer's outputs."""

    def paint(axes: Axes, quantity: str) -> None:
        for arm, series in ARMS.items():
            band = {key: _array(v) for key, v in results["moments"][arm][quantity].items()}
            epochs = np.arange(len(band["median"]))
            line(axes, epochs, band["median"], series)
            axes.fill_between(epochs, band["low"], band["high"], color=series.colour, **BAND)
            for edge in ("low", "high"):
                axes.plot(epochs, band[edge], color=series.colour, lw=0.8, alpha=0.7)
        mark_drops(axes, results["training"]["learning_rate"], results["training"]["drops"])

    return [
        draw(
            lambda axes, quantity=quantity: paint(axes, quantity),
            name=f"moments-{quantity}",
            title=label,
            xlabel="epoch (0: untrained)",
        )
        for quantity, label in QUANTITIES.items()
    ]


def distances(results: dict) -> list[str]:
    """Earth mover distance from one epoch to the next, and the learning rate beside it."""
    training = results["training"]

    def distance(axes: Axes) -> None:
        for arm, series in ARMS.items():
            runs = _array(results["distances"][arm])
            curve(axes, np.arange(runs.shape[1]) + 1, runs, series)
        mark_drops(axes, training["learning_rate"], training["drops"])
        plots.log_scale(axes)

    def rate(axes: Axes) -> None:
        rates = _array(training["learning_rate"])
        axes.plot(np.arange(len(rates)) + 1, rates, color=INK, marker=".", drawstyle="steps-mid")
        mark_drops(axes, training["learning_rate"], training["drops"])
        plots.log_scale(axes)

    return [
        draw(
            distance, name="distance", title="earth mover distance, layer's units", xlabel="epoch"
        ),
        draw(rate, name="rate", title="learning rate", xlabel="epoch"),
    ]


def by_layer(pruning: dict, quantity: str) -> list[str]:
    """`"spearman"` or `"overlap"` of every pair of criteria, layer by layer."""
    layers = np.arange(len(pruning["layers"])) + 1

    def paint(axes: Axes, pair: str) -> None:
        if quantity == "spearman":
            expected = _array(pruning["expected_spearman"][pair])
            axes.plot(layers, expected, color=MUTED, dashes=(4, 2), lw=1.3)
        for arm, series in ARMS.items():
            curve(axes, layers, _array(pruning[arm][quantity][pair]), series)
        plots.whole_numbers(axes)

    return [
        draw(
            lambda axes, pair=pair: paint(axes, pair),
            name=f"{quantity}-{pair}",
            title=pair_label(pair),
            xlabel=f"convolution, 1 to {len(layers)}",
            size=SMALL,
        )
        for pair in pruning["pairs"]
    ]


def masking(pruning: dict, kind: str) -> list[str]:
    """Accuracy after masking, one panel an arm; `kind` is `"masked"` or `"recalibrated"`."""

    def paint(axes: Axes, arm: dict) -> None:
        _level(axes, arm["unmasked"])
        for i, (criterion, series) in enumerate(CRITERIA.items()):
            means = [arm[kind][criterion][ratio] for ratio in arm[kind][criterion]]
            ratios = 100 * _array(list(arm[kind][criterion])) + (i - 1.5) * 1.2
            y, bars = (100 * _array([m[key] for m in means]) for key in ("mean", "stderr"))
            axes.errorbar(ratios, y, bars, color=series.colour, lw=1.2, **mark(series))
        axes.set_xticks([100 * float(ratio) for ratio in next(iter(arm[kind].values()))])

    return [
        draw(
            lambda axes, arm=arm: paint(axes, pruning[arm]),
            name=f"{kind}-{arm}",
            title=f"{ARMS[arm].label}: test accuracy, %",
            xlabel="filters masked in every layer, %",
        )
        for arm in ARMS
    ]


def histograms(layers: Sequence[dict]) -> list[str]:
    """Weights of a few layers, and the Gaussian fitted to them."""

    def paint(axes: Axes, layer: dict) -> None:
        edges, density = _array(layer["edges"]), _array(layer["density"])
        axes.stairs(density, edges, fill=True, color=SERIES[0], alpha=0.35)
        axes.stairs(density, edges, color=SERIES[0], lw=0.8)
        x, sigma = np.linspace(edges[0], edges[-1], 201), layer["sigma"]
        gaussian = np.exp(-((x / sigma) ** 2) / 2) / (sigma * (2 * np.pi) ** 0.5)
        axes.plot(x, gaussian, color=INK, dashes=(4, 2), lw=1.4)
        axes.locator_params(axis="x", nbins=5)

    return [
        draw(
            lambda axes, layer=layer: paint(axes, layer),
            name=f"histogram-{i}",
            title=f"{layer['layer']}: density",
            xlabel=f"weight; σ {layer['sigma']:.3g}, KS {layer['ks']:.3f}, n {layer['weights']:,}",
            size=SMALL,
        )
        for i, layer in enumerate(layers)
    ]


def odd_point(results: dict) -> list[str]:
    """The last batch in two dimensions, the norm ratio by layer, and the norms in the tree."""
    network, tree = results["network"], results["tree"]

    def mark(axes: Axes, x: float, y: float) -> None:
        axes.plot(x, y, "*", color=SERIES[1], ms=13, mec=PAPER, mew=0.8)

    def projection(axes: Axes) -> None:
        points = _array(network["projection"])
        axes.grid(color=GRID)
        axes.set_aspect("equal", adjustable="datalim")
        axes.plot(*points.T, "o", color=SERIES[0], ms=4.5, alpha=0.6, mew=0)
        x, y = network["projection"][network["index"]]
        mark(axes, x, y)

    def ratio(axes: Axes) -> None:
        ratios = _array(network["norm_ratio"])
        axes.plot(np.arange(len(ratios)) + 1, ratios, color=SERIES[1])
        axes.axhline(network["points"] - 1, color=MUTED, dashes=(4, 2), lw=1.3)
        plots.log_scale(axes)

    def norms(axes: Axes) -> None:
        inputs, heights = _array(tree["inputs"]), _array(tree["norms"])
        axes.vlines(inputs, 0, heights, color=SERIES[0], lw=1.2, alpha=0.6)
        axes.plot(inputs, heights, "o", color=SERIES[0])
        mark(axes, tree["inputs"][tree["index"]], tree["norms"][tree["index"]])

    layers = f"layer, 1 to {network['depth']}"
    return [
        draw(
            projection,
            name="projection",
            title="last batch, principal plane",
            xlabel="the same scale in both directions",
            size=SMALL,
        ),
        draw(
            ratio,
            name="norm-ratio",
            title="norm, over the others' mean",
            xlabel=layers,
            size=SMALL,
        ),
        draw(
            norms,
            name="tree",
            title="tree: norm, largest is 1",
            xlabel="input of the point",
            size=SMALL,
        ),
    ]


def _array(values: Sequence) -> np.ndarray:
    """`values` in float64; None, as JSON writes what is not finite, becomes NaN and a gap."""
    return np.asarray(values, dtype=float)


def _level(axes: Axes, unmasked: dict) -> None:
    """The accuracy of the whole network, as a dashed line across."""
    axes.axhline(100 * unmasked["mean"], color=MUTED, dashes=(4, 2), lw=1.3)
