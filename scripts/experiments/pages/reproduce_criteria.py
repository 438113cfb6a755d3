"""Make the report's sections on criteria: rankings, accuracy after masking, and weights.

A line in a plot is the mean over seeds; the band or bar around the line is one standard error.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments.measures.networks import OverSeeds, mean
from experiments.pages import plots
from experiments.pages.page import details, figure, paragraphs, table
from experiments.pages.plots import INK, MUTED, SERIES, SMALL, Series, curve, floats, panels
from experiments.pages.sentences import average, likeness, number, percent
from experiments.pages.series import NORMALIZATIONS, criterion_series, pair_label
from experiments.texts import shorten

SYMBOLS = {"spearman": "ρ", "overlap": "overlap"}
GAUSSIAN = Series("expected of Gaussian filters", MUTED, "")
MASKINGS = {"masked": "Without further change", "recalibrated": "With recalibrated statistics"}


def criteria(results: dict) -> str:
    pruning = results["pruning"]
    series = [*NORMALIZATIONS.values(), GAUSSIAN]
    parts = [
        paragraphs(
            "Each criterion scores the filters of a layer, and the filters with the lowest scores "
            "are pruned first. The pruning paper says that l1, l2, Fermat and GM rank the filters "
            "almost alike."
        ),
        "<h3>Spearman's ρ by layer (every panel has its own scale)</h3>",
        figure(by_layer(pruning, "spearman"), spearman_sentence(pruning), series, "three"),
        f"<h3>Overlap by layer, at {100 * pruning['overlap_ratio']:.3g} %</h3>",
        figure(by_layer(pruning, "overlap"), overlap_sentence(pruning), series[:2], "three"),
        _pairs(pruning),
        "<h3>Accuracy after masking</h3>",
        *(
            _masking(pruning, kind, title)
            for kind, title in MASKINGS.items()
            if all(kind in pruning[name] for name in NORMALIZATIONS)
        ),
    ]
    return "".join(parts) + _layers(pruning)


def by_layer(pruning: dict, quantity: str) -> list[str]:
    """A panel for each pair of criteria, with `"spearman"` or `"overlap"` in each layer."""
    layers = np.arange(len(pruning["layers"])) + 1

    def paint(axes: Axes, pair: str) -> None:
        if quantity == "spearman":
            expected = floats(pruning["expected_spearman"][pair])
            axes.plot(layers, expected, color=MUTED, dashes=(4, 2), lw=1.3)
        for name, series in NORMALIZATIONS.items():
            curve(axes, layers, floats(pruning[name][quantity][pair]), series)
        plots.whole_numbers(axes)

    return similarity_panels(paint, quantity, pruning["pairs"], len(layers))


def similarity_panels(
    paint: Callable[[Axes, str], object], quantity: str, pairs: Iterable[str], layers: int
) -> list[str]:
    """A panel for each pair of criteria; the horizontal axis shows the layers of a network."""
    titles = {pair: pair_label(pair) for pair in pairs}
    xlabel = f"layer, 1 to {layers}"
    return panels(paint, titles, name=quantity, xlabel=xlabel, size=SMALL)


def spearman_sentence(pruning: dict) -> str:
    """Sentences on how similarly criteria rank filters, as measured and as expected in theory."""
    expected = {p: average(pruning["expected_spearman"][p]) for p in pruning["pairs"]}
    gaps = {
        pair: abs(measured - theory)
        for pair, mean in pair_means(pruning, "spearman", "batch_norm").items()
        if (measured := mean["mean"]) is not None and (theory := expected[pair]) is not None
    }
    sentence = f"Averaged over layers, under batch norm, {_extremes(pruning, 'spearman')}"
    if not gaps:
        return sentence + "."
    widest = max(gaps, key=lambda p: gaps[p])
    return (
        f"{sentence}; no pair is farther than {number(gaps[widest], 2)} from what Gaussian filters "
        f"would give ({pair_label(widest)}: {number(expected[widest])})."
    )


def overlap_sentence(pruning: dict) -> str:
    """Sentences on the overlap between the filters that two criteria would remove first."""
    share = f"{100 * pruning['overlap_ratio']:.3g} %"
    return (
        f"Of the {share} of filters that a criterion would remove first, the share that another "
        f"would remove as well: under batch norm {_extremes(pruning, 'overlap')}."
    )


def pair_means(pruning: dict, quantity: str, normalization: str) -> dict[str, OverSeeds]:
    """For each pair of criteria, the mean of `quantity` over layers and seeds."""
    runs = pruning[normalization][quantity]
    return {pair: mean(average(layers) for layers in runs[pair]) for pair in pruning["pairs"]}


def ranked_pairs(pruning: dict, quantity: str) -> list[tuple[str, OverSeeds]]:
    means = pair_means(pruning, quantity, "batch_norm").items()
    known = [(mean["mean"], pair, mean) for pair, mean in means if mean["mean"] is not None]
    return [(pair, mean) for _, pair, mean in sorted(known, key=lambda entry: entry[0])]


def _extremes(pruning: dict, quantity: str) -> str:
    """A text that names the pairs of criteria with the smallest and the largest similarity."""
    ranked = ranked_pairs(pruning, quantity)
    if not ranked:
        return "no layer has a ranking to compare"
    (lowest, low), (highest, high) = ranked[0], ranked[-1]
    return (
        f"{pair_label(lowest)} agree least ({likeness(low)}), "
        f"{pair_label(highest)} most ({likeness(high)})"
    )


def _pairs(pruning: dict) -> str:
    columns = {
        f"{symbol}, {series.label}": pair_means(pruning, quantity, name)
        for quantity, symbol in SYMBOLS.items()
        for name, series in NORMALIZATIONS.items()
    }
    rows = [
        [
            pair_label(pair),
            *(likeness(means[pair]) for means in columns.values()),
            _expected(pruning["expected_spearman"][pair]),
        ]
        for pair in pruning["pairs"]
    ]
    head = ["", *columns, "ρ, Gaussian filters"]
    return table(head, rows, "Pairs of criteria, averaged over layers")


def _expected(by_layer: Sequence[float | None]) -> str:
    mean = average(by_layer)
    return "no exact theory" if mean is None else number(mean, 4)


def _layers(pruning: dict) -> str:
    """A folded table with Spearman's ρ in each layer of the networks with batch norm."""
    head = ["", "layer", "filters", "dims", *map(pair_label, pruning["pairs"])]
    spearman = pruning["batch_norm"]["spearman"]
    rows = [
        [
            f"{i + 1}",
            layer["name"],
            f"{layer['filters']}",
            f"{layer['dims']:,}",
            *(likeness(mean(run[i] for run in spearman[pair])) for pair in pruning["pairs"]),
        ]
        for i, layer in enumerate(pruning["layers"])
    ]
    return details("Layer by layer", table(head, rows, "Spearman's ρ under batch norm"))


def _masking(pruning: dict, kind: str, title: str) -> str:
    sentence = "; ".join(masking_sentence(pruning, name, kind) for name in NORMALIZATIONS)
    series = criterion_series(pruning["batch_norm"][kind])
    return figure(
        masking_plots(pruning, kind),
        f"{title}, {sentence} (dashed: nothing masked). Below, the same minus the mean of the "
        "criteria, seed by seed, where the curves overlap; bars are one standard error over seeds.",
        series.values(),
    ) + _masking_table(pruning, kind, title)


def masking_plots(pruning: dict, kind: str) -> list[str]:
    """Panels of the accuracy after masking for each normalization, and of criteria's differences.

    The argument `kind` is one of `MASKINGS`.
    """

    def paint(axes: Axes, shown: tuple[str, bool]) -> None:
        name, is_difference = shown
        masked = pruning[name][kind]
        baseline = 0.0 if is_difference else 100 * pruning[name]["unmasked"]["mean"]
        axes.axhline(baseline, color=MUTED, dashes=(4, 2), lw=1.3)
        # `values` has the shape (criteria, ratios, seeds).
        values = 100 * floats([[m["values"] for m in by.values()] for by in masked.values()])
        values -= values.mean(0) if is_difference else 0
        middle = (len(masked) - 1) / 2
        ratios = 100 * floats(list(masked["l1"]))
        for i, series in enumerate(criterion_series(masked).values()):
            plots.bars(axes, ratios + (i - middle) * 1.2, values[i].T, series)
        axes.set_xticks(ratios)

    titles = {(n, False): f"{s.label}: test accuracy, %" for n, s in NORMALIZATIONS.items()}
    titles |= {(n, True): f"{s.label}: differences, points" for n, s in NORMALIZATIONS.items()}
    return panels(paint, titles, name=kind, xlabel="filters masked in every layer, %")


def masking_sentence(pruning: dict, normalization: str, kind: str) -> str:
    """A sentence that names the criteria whose masks cost the most and the least accuracy.

    The sentence is about the share of masked filters at which criteria differ most.
    """
    masked = pruning[normalization][kind]
    start = f"of {percent(pruning[normalization]['unmasked'])} %, "
    start += f"{NORMALIZATIONS[normalization].label} keeps "

    def left(ratio: str) -> dict[str, float]:
        return {criterion: means[ratio]["mean"] for criterion, means in masked.items()}

    def spread(ratio: str) -> float:
        return max(left(ratio).values()) - min(left(ratio).values())

    def at(ratio: str) -> str:
        return f"after masking {100 * float(ratio):.3g} %"

    ratio = max(masked["l1"], key=spread)
    if not spread(ratio):
        return f"{start}{percent(masked['l1'][ratio])} % by every criterion {at(ratio)}"
    worst, best = (pick(left(ratio), key=left(ratio).__getitem__) for pick in (min, max))
    said = (
        f"{start}between {percent(masked[worst][ratio])} % ({pair_label(worst)}) and "
        f"{percent(masked[best][ratio])} % ({pair_label(best)}) {at(ratio)}"
    )
    largest = max(masked["l1"], key=float)
    if spread(largest):
        return said
    return f"{said}, and by every criterion {percent(masked['l1'][largest])} % {at(largest)}"


def _masking_table(pruning: dict, kind: str, title: str) -> str:
    rows = []
    for name, series in NORMALIZATIONS.items():
        masked = pruning[name][kind]
        unmasked = percent(pruning[name]["unmasked"])
        rows.append([f"{series.label}, 0 %", *(unmasked for _ in masked)])
        for ratio in masked["l1"]:
            left = (percent(means[ratio]) for means in masked.values())
            rows.append([f"{series.label}, {100 * float(ratio):.3g} %", *left])
    head = ["share masked", *map(pair_label, pruning["batch_norm"][kind])]
    return table(head, rows, f"{title}: test accuracy after masking, %")


def filters(results: dict) -> str:
    layers = results["histograms"]
    return paragraphs(
        "Weights of some convolutions of the batch norm network (bars) and the fitted Gaussian of "
        "mean 0 (dashed). The pruning paper assumes that weights are Gaussian."
    ) + figure(histogram_plots(layers), histograms_sentence(layers), (), "three")


def histogram_plots(layers: Sequence[dict], *, name: str = "histogram") -> list[str]:
    """Panels with histograms of the weights in a few layers, and the fitted Gaussians."""

    def paint(layer: dict, axes: Axes) -> None:
        edges, density = floats(layer["edges"]), floats(layer["density"])
        axes.stairs(density, edges, fill=True, color=SERIES[0], alpha=0.35)
        axes.stairs(density, edges, color=SERIES[0], lw=0.8)
        x, sigma = np.linspace(edges[0], edges[-1], 201), layer["sigma"]
        gaussian = np.exp(-((x / sigma) ** 2) / 2) / (sigma * (2 * np.pi) ** 0.5)
        axes.plot(x, gaussian, color=INK, dashes=(4, 2), lw=1.4)
        axes.locator_params(axis="x", nbins=5)

    return [
        plots.draw(
            partial(paint, layer),
            name=f"{name}-{i}",
            title=f"{shorten(layer['layer'], 24)}: density",
            xlabel=f"weight; σ {layer['sigma']:.3g}, KS {layer['ks']:.3f}, n {layer['weights']:,}",
            size=SMALL,
        )
        for i, layer in enumerate(layers)
    ]


def histograms_sentence(layers: Sequence[dict]) -> str:
    """A sentence on how far the weights are from Gaussian."""
    departing = sum(layer["ks"] > 1.358 / layer["weights"] ** 0.5 for layer in layers)
    largest = max(layers, key=lambda layer: layer["ks"])
    return (
        f"The Kolmogorov-Smirnov distance (KS) to the fitted Gaussian is at most "
        f"{largest['ks']:.3f} ({largest['layer']}); {departing} of {len(layers)} layers lie "
        "farther from it than 95 % of Gaussian samples of n weights would (1.36/√n)."
    )
