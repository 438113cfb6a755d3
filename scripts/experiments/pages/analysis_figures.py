"""Draw the pruning paper's figures for one network, as sections of the page of an analysis."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments.measures import analysis
from experiments.pages import plots
from experiments.pages.page import details, figure, paragraphs, table
from experiments.pages.plots import GRID, MUTED, SERIES, SMALL, Series, draw, floats
from experiments.pages.reproduce_criteria import histogram_plots, similarity_panels
from experiments.pages.sentences import number
from experiments.pages.series import pair_label
from experiments.texts import shorten

NETWORK = Series("this network", SERIES[0], "o")
GAUSSIAN = Series("95 % of Gaussian layers of the same shape", MUTED, "")
SCATTERED = (("l1", "l2", "l1-l2"), ("gm", "l2", "l2-gm"), ("fermat", "l2", "l2-fermat"))


def scores(results: dict) -> str:
    """The section with Figure 1, which shows the scores of each filter by two criteria."""

    def paint(layer: dict, a: str, b: str, axes: Axes) -> None:
        axes.grid(color=GRID)
        x, y = (floats(layer["scores"][name]) for name in (a, b))
        axes.plot(x, y, "o", color=SERIES[0], ms=4, alpha=0.6, mew=0)
        axes.locator_params(nbins=5)

    panels = [
        draw(
            partial(paint, layer, a, b),
            name=f"scores-{i}-{a}",
            title=f"{shorten(layer['name'], 24)}: {pair_label(b)}",
            xlabel=f"{pair_label(a)}; ρ {layer['spearman'][pair]:.3f}",
            size=SMALL,
        )
        for i, layer in enumerate(_chosen(results))
        for a, b, pair in SCATTERED
    ]
    return figure(
        panels,
        "Each point is a filter of the first, a middle or the last layer (Figure 1), with l2 "
        "plotted against l1, GM and Fermat. Gaussian filters of one width have a ρ of l1 and l2 "
        "near 0.93.",
        columns="three",
    )


def similarity(results: dict) -> str:
    """The section with Figures 2 and 4: overlap and Spearman's ρ of two criteria in each layer."""
    if not results["layers"]:
        return paragraphs("No layer has a ranking to compare.")
    above = "; ".join(
        f"{pair_label(pair)} in {count} of {total}"
        for pair, (count, total) in analysis.above(results).items()
    )
    share = f"{100 * results['settings']['ratio']:.3g} %"
    dashed = "The dashed line is the value that theory predicts for Gaussian filters."
    titles = {
        "spearman": "Spearman's ρ by layer (every panel has its own scale)",
        "overlap": f"Overlap by layer, at {share}",
    }
    captions = {
        "spearman": f"ρ exceeds 0.9 for {above} layers (Figure 4). {dashed}",
        "overlap": f"Of the {share} that one criterion would prune, the share that the other "
        f"criterion would prune too (Figure 2); independent rankings share {share}. {dashed}",
    }
    return "".join(
        f"<h3>{title}</h3>"
        + figure(_similarity_plots(results, name), captions[name], (NETWORK, GAUSSIAN), "three")
        for name, title in titles.items()
    )


def _similarity_plots(results: dict, quantity: str) -> list[str]:
    """For each pair of criteria, a panel that compares the network's and Gaussian layers."""
    layers = results["layers"]
    x = np.arange(len(layers)) + 1
    bands = [results["gaussian"][f"{layer['filters']}x{layer['dims']}"] for layer in layers]

    def paint(axes: Axes, pair: str) -> None:
        low, high = floats([band[pair][quantity] for band in bands]).T
        edges = np.repeat(np.concatenate([x - 0.5, x[-1:] + 0.5]), 2)[1:-1]
        axes.fill_between(
            edges, np.repeat(low, 2), np.repeat(high, 2), color=MUTED, alpha=0.2, lw=0
        )
        expected = floats([band[pair][f"expected_{quantity}"] for band in bands])
        axes.plot(x, expected, color=MUTED, dashes=(4, 2), lw=1.2)
        axes.plot(x, [layer[quantity][pair] for layer in layers], color=SERIES[0], marker="o")
        plots.whole_numbers(axes)

    return similarity_panels(paint, quantity, analysis.PAIRS, len(layers))


def histograms(results: dict) -> str:
    """The section with Figure 3, which shows histograms of the weights in a few layers."""
    return figure(
        histogram_plots(results["histograms"]),
        "Weights (bars) and the Gaussian of mean 0 and the same width (dashed), with the distance "
        "between the two (Figure 3).",
        columns="three",
    )


def covariances(results: dict) -> str:
    """The section with Figure 6, which shows covariances between filters of a layer."""
    panels = [
        draw(
            partial(_paint_covariance, layer),
            name=f"covariance-{i}",
            title=f"{shorten(layer['layer'], 24)}: covariance / c²",
            xlabel=f"filter; {layer['dims']:,} dims",
            size=(3.4, 3.2),
        )
        for i, layer in enumerate(results["covariances"])
    ]
    rows = [
        [
            shorten(layer["name"], 24),
            *(number(layer[f"{key}_z"], 3) for key in ("diagonal", "off_diagonal", "sphericity")),
            f"{layer['smallest_eigenvalue']:.3f} to {layer['largest_eigenvalue']:.3f}",
            f"{layer['low_edge']:.3f} to {layer['high_edge']:.3f}",
        ]
        for layer in _chosen(results)
    ]
    head = ["layer", "variances, z", "correlations, z", "sphericity, z"]
    head += ["eigenvalues / c²", "Marchenko-Pastur"]
    return figure(
        panels,
        f"Covariance of the first {analysis.SHOWN} filters (Figure 6). Blue is positive, orange is "
        "negative, and full colour is c². For Gaussian filters only the diagonal would stand out, "
        "and z would be N(0, 1).",
        columns="three",
    ) + table(head, rows, "The whole covariance of these layers")


def _paint_covariance(layer: dict, axes: Axes) -> None:
    c = floats(layer["covariance"])
    image = np.zeros((*c.shape, 4))
    # Large values are opaque. Where the value is zero, the background of the page is visible.
    image[..., :3] = np.where(c[..., None] > 0, (0.0, 0.45, 0.7), (0.85, 0.37, 0.0))
    image[..., 3] = np.clip(np.abs(c), 0, 1)
    axes.grid(visible=False)
    axes.imshow(image, interpolation="nearest", extent=(0.5, len(c) + 0.5, len(c) + 0.5, 0.5))
    axes.locator_params(nbins=5)


def others(results: dict) -> str:
    """The section with Figure 8: how far parameters outside convolutions are from Gaussian."""
    parameters = results["others"]
    if not parameters:
        return paragraphs("The file holds no dense layers, biases or normalization parameters.")
    by_distance = sorted(parameters, key=lambda parameter: -parameter["ks"])
    largest = max(parameters, key=lambda parameter: parameter["weights"])
    shown = [by_distance[0], by_distance[len(by_distance) // 2], largest]
    shown = list({parameter["layer"]: parameter for parameter in shown}.values())
    rows = [
        [p["layer"], f"{p['weights']:,}", f"{p['ks']:.3f}", number(p["p_value"], 2)]
        for p in parameters
    ]
    rejected = sum(parameter["p_value"] < analysis.LEVEL for parameter in parameters)
    return figure(
        histogram_plots(shown, name="other"),
        "Normalization and dense parameters (Figure 8): the parameter farthest from a Gaussian, a "
        f"middle one, and the largest one. {rejected} of {len(parameters)} reject N(0, c²) at 5 %, "
        "each tested alone. A normalization's scale has a positive mean, which is enough for a "
        "rejection.",
        columns="three",
    ) + details(
        f"All {len(parameters)} of them",
        table(["parameter", "n", "KS", "p"], rows, "Distance to N(0, c²), c from the data"),
    )


def _chosen(results: dict) -> list[dict]:
    return [layer for layer in results["layers"] if layer["name"] in results["chosen"]]
