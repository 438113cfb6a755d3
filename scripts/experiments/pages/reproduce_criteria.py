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
GAUSSIAN = Series("theory for Gaussian filters", MUTED, "")


def criteria(results: dict) -> str:
    pruning = results["pruning"]
    series = [*NORMALIZATIONS.values(), GAUSSIAN]
    parts = [
        paragraphs(
            "The pruning paper says that l1, l2, Fermat and GM rank the filters of a layer almost "
            "alike. Spearman's ρ of two criteria is the correlation of the ranks that the criteria "
            "give to the filters of a layer. Equal rankings have ρ = 1, and unrelated rankings "
            "have ρ near 0. " + spearman_sentence(pruning)
        ),
        "<h3>Spearman's ρ by layer</h3>",
        figure(
            by_layer(pruning, "spearman"),
            "Spearman's ρ in each layer. Each panel has one pair of criteria and its own scale. "
            "The dashed line is the ρ that theory predicts for Gaussian filters.",
            series,
            "three",
        ),
        f"<h3>Overlap by layer, at {100 * pruning['overlap_ratio']:.3g} %</h3>",
        paragraphs(overlap_sentence(pruning)),
        figure(
            by_layer(pruning, "overlap"),
            "Overlap in each layer. Each panel has one pair of criteria and its own scale.",
            series[:2],
            "three",
        ),
        _pairs(pruning),
        "<h3>Accuracy after masking</h3>",
        paragraphs(
            "To mask a filter, we set its weights and the parameters of its channel to zero, so "
            "that the filter has no effect. In every layer, we masked the same share of the "
            "filters, beginning with the filter that has the lowest score, and measured the test "
            "accuracy without further training. "
            + " ".join(masking_sentence(pruning, name) for name in NORMALIZATIONS)
        ),
        _masking(pruning),
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
    sentence = _extremes(pruning, "spearman", "Spearman's ρ")
    if not gaps:
        return sentence
    widest = max(gaps, key=lambda p: gaps[p])
    return (
        f"{sentence} The mean ρ of every pair differs by at most {number(gaps[widest], 2)} from "
        f"the ρ that theory predicts for Gaussian filters. The difference is largest for "
        f"{pair_label(widest)}, whose predicted ρ is {number(expected[widest])}."
    )


def overlap_sentence(pruning: dict) -> str:
    """Sentences on the overlap between the filters that two criteria would remove first."""
    share = f"{100 * pruning['overlap_ratio']:.3g} %"
    return (
        f"Each criterion would first remove the {share} of the filters with the lowest scores. "
        "The overlap of two criteria is the share of these filters that both criteria would "
        f"remove. {_extremes(pruning, 'overlap', 'overlap')}"
    )


def pair_means(pruning: dict, quantity: str, normalization: str) -> dict[str, OverSeeds]:
    """For each pair of criteria, the mean of `quantity` over layers and seeds."""
    runs = pruning[normalization][quantity]
    return {pair: mean(average(layers) for layers in runs[pair]) for pair in pruning["pairs"]}


def ranked_pairs(pruning: dict, quantity: str) -> list[tuple[str, OverSeeds]]:
    means = pair_means(pruning, quantity, "batch_norm").items()
    known = [(mean["mean"], pair, mean) for pair, mean in means if mean["mean"] is not None]
    return [(pair, mean) for _, pair, mean in sorted(known, key=lambda entry: entry[0])]


def _extremes(pruning: dict, quantity: str, name: str) -> str:
    """A sentence that names the pairs of criteria with the smallest and the largest similarity."""
    ranked = ranked_pairs(pruning, quantity)
    if not ranked:
        return "With batch norm, no layer has a ranking to compare."
    (lowest, low), (highest, high) = ranked[0], ranked[-1]
    return (
        f"With batch norm, the mean {name} over layers is smallest for {pair_label(lowest)} "
        f"({likeness(low)}) and largest for {pair_label(highest)} ({likeness(high)})."
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
    head = ["criteria", *columns, "ρ, Gaussian filters"]
    return table(
        head,
        rows,
        "Mean Spearman's ρ and mean overlap over the layers for each pair of criteria; the last "
        "column is the mean ρ that theory predicts for Gaussian filters",
    )


def _expected(by_layer: Sequence[float | None]) -> str:
    mean = average(by_layer)
    return "no exact theory" if mean is None else number(mean, 4)


def _layers(pruning: dict) -> str:
    """A folded table with Spearman's ρ in each layer of the networks with batch norm."""
    head = ["number", "layer", "filters", "dims", *map(pair_label, pruning["pairs"])]
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
    caption = "Spearman's ρ with batch norm; a filter has as many weights as “dims” says"
    return details("Show Spearman's ρ of every layer", table(head, rows, caption))


def _masking(pruning: dict) -> str:
    series = criterion_series(pruning["batch_norm"]["masked"])
    return figure(
        masking_plots(pruning),
        "Upper panels: test accuracy after masking. The dashed line is the accuracy before "
        "masking. Lower panels: the accuracy minus the mean accuracy of all criteria in the same "
        "seed. Bars are one standard error over seeds.",
        series.values(),
    ) + _masking_table(pruning)


def masking_plots(pruning: dict) -> list[str]:
    """Panels of each normalization's accuracy after masking, and of criteria's differences."""

    def paint(axes: Axes, shown: tuple[str, bool]) -> None:
        name, is_difference = shown
        masked = pruning[name]["masked"]
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
    return panels(paint, titles, name="masked", xlabel="filters masked in every layer, %")


def masking_sentence(pruning: dict, normalization: str) -> str:
    """Sentences that name the criteria whose masks cost the most and the least accuracy.

    The sentences are about the share of masked filters at which criteria differ most.
    """
    masked = pruning[normalization]["masked"]
    start = (
        f"With {NORMALIZATIONS[normalization].label}, the accuracy is "
        f"{percent(pruning[normalization]['unmasked'])} % before masking."
    )

    def left(ratio: str) -> dict[str, float]:
        return {criterion: means[ratio]["mean"] for criterion, means in masked.items()}

    def spread(ratio: str) -> float:
        return max(left(ratio).values()) - min(left(ratio).values())

    def at(ratio: str) -> str:
        return f"after masking {100 * float(ratio):.3g} % of the filters"

    ratio = max(masked["l1"], key=spread)
    if not spread(ratio):
        return f"{start} It is {percent(masked['l1'][ratio])} % by every criterion {at(ratio)}."
    worst, best = (pick(left(ratio), key=left(ratio).__getitem__) for pick in (min, max))
    said = (
        f"{start} Criteria differ most {at(ratio)}, where the accuracy is between "
        f"{percent(masked[worst][ratio])} % ({pair_label(worst)}) and "
        f"{percent(masked[best][ratio])} % ({pair_label(best)})."
    )
    largest = max(masked["l1"], key=float)
    if spread(largest):
        return said
    return f"{said} It is {percent(masked['l1'][largest])} % by every criterion {at(largest)}."


def _masking_table(pruning: dict) -> str:
    rows = []
    for name, series in NORMALIZATIONS.items():
        masked = pruning[name]["masked"]
        unmasked = percent(pruning[name]["unmasked"])
        rows.append([f"{series.label}, 0 %", *(unmasked for _ in masked)])
        for ratio in masked["l1"]:
            left = (percent(means[ratio]) for means in masked.values())
            rows.append([f"{series.label}, {100 * float(ratio):.3g} %", *left])
    head = ["network, filters masked", *map(pair_label, pruning["batch_norm"]["masked"])]
    return table(head, rows, "Test accuracy in % after masking by each criterion")


def filters(results: dict) -> str:
    layers = results["histograms"]
    return paragraphs(
        "The pruning paper assumes that the weights of a convolution are Gaussian. We compared the "
        "weights of some convolutions of the network with batch norm with the fitted Gaussian of "
        f"mean 0. {histograms_sentence(layers)}"
    ) + figure(
        histogram_plots(layers),
        "Histograms of the weights (bars) and density of the fitted Gaussian (dashed). Below each "
        "panel, σ is the standard deviation of the Gaussian, KS the distance and n the number of "
        "weights.",
        columns="three",
    )


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
    """Sentences on how far the weights are from Gaussian."""
    departing = sum(layer["ks"] > 1.358 / layer["weights"] ** 0.5 for layer in layers)
    largest = max(layers, key=lambda layer: layer["ks"])
    return (
        "The Kolmogorov-Smirnov distance (KS) is the largest difference between the distribution "
        f"functions. The distance is at most {largest['ks']:.3f} (layer {largest['layer']}). For n "
        "Gaussian weights, the distance is below 1.36/√n in 95 % of the samples. In "
        f"{departing} of {len(layers)} layers, the distance exceeds this limit."
    )
