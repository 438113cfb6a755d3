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
GAUSSIAN = Series("Gaussian layers of the same shape", MUTED, "")
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
        "Scores of the filters in the first, a middle and the last layer (the paper's Figure 1). "
        "Each point is a filter. The vertical axis is its score by l2, and the horizontal axis is "
        "its score by l1, GM or Fermat. Below each panel, ρ is Spearman's ρ of the two criteria. "
        "For Gaussian filters with equal variances, ρ of l1 and l2 is near 0.93.",
        columns="three",
    )


def similarity(results: dict) -> str:
    """The section with Figures 2 and 4: overlap and Spearman's ρ of two criteria in each layer."""
    if not results["layers"]:
        return paragraphs("No layer has a ranking to compare.")
    rows = [
        [pair_label(pair), f"{count} of {total}"]
        for pair, (count, total) in analysis.above(results).items()
    ]
    share = f"{100 * results['settings']['ratio']:.3g} %"
    gaussian = (
        "Each panel has one pair of criteria and its own scale. The grey band contains 95 % of "
        "random Gaussian layers of the same shape, and the dashed line is the value that theory "
        "predicts for them."
    )
    titles = {"spearman": "Spearman's ρ by layer", "overlap": f"Overlap by layer, at {share}"}
    captions = {
        "spearman": f"Spearman's ρ in each layer (the paper's Figure 4). {gaussian}",
        "overlap": f"Overlap in each layer (the paper's Figure 2). A criterion would first remove "
        f"the {share} of the filters with the lowest scores, and the overlap is the share of these "
        f"filters that both criteria would remove. Independent rankings have the overlap {share}. "
        f"{gaussian}",
    }
    return table(
        ["criteria", "layers"], rows, "Number of layers in which Spearman's ρ is above 0.9"
    ) + "".join(
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
        "Histograms of the weights in the first, a middle and the last layer (bars), and the "
        "Gaussian with mean 0 and the same mean square (dashed), as in the paper's Figure 3. Below "
        "each panel, σ is the standard deviation of the Gaussian, KS the Kolmogorov-Smirnov "
        "distance between weights and Gaussian, and n the number of weights.",
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
    head += ["eigenvalues / c²", "Marchenko-Pastur range"]
    return figure(
        panels,
        "Covariance matrix of the filters in the first, a middle and the last layer, for up to "
        f"{analysis.SHOWN} filters (the paper's Figure 6). Blue is positive, orange is negative, "
        "and full colour is c², the mean variance of the filters. For independent Gaussian "
        "filters, only the diagonal would stand out.",
        columns="three",
    ) + table(
        head,
        rows,
        "Covariance of all filters of these layers. For Gaussian filters with covariance c² I, the "
        "statistics z of the tests of equal variances, of zero correlations and of sphericity "
        "would be N(0, 1), and eigenvalues would be close to the range of Marchenko and Pastur.",
    )


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
        "Histograms of other parameters, such as those of normalizations (the paper's Figure 8): "
        "the parameter farthest from a Gaussian, one with the median distance, and the largest "
        "one. A Kolmogorov-Smirnov test, without correction for the number of tests, rejects "
        f"N(0, c²) at the 5 % level for {rejected} of {len(parameters)} parameters. The scale of a "
        "normalization has a positive mean, which is enough for a rejection.",
        columns="three",
    ) + details(
        f"Show all {len(parameters)} parameters",
        table(
            ["parameter", "n", "KS", "p"],
            rows,
            "Distance KS of the n values of a parameter to N(0, c²), where c² is their mean "
            "square, and p-value of the Kolmogorov-Smirnov test",
        ),
    )


def _chosen(results: dict) -> list[dict]:
    return [layer for layer in results["layers"] if layer["name"] in results["chosen"]]
