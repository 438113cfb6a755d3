"""Make the page of `scripts/filter_models.py`, on predicted and measured rankings of filters."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

from experiments.measures.filter_models import MODELS
from experiments.pages import page
from experiments.pages.page import figure, paragraphs, provenance, table
from experiments.pages.papers import criteria_defined, reference
from experiments.pages.plots import MUTED, SERIES, Series, mark, panels

SHOWN = {
    "gaussian": Series("Gaussian", SERIES[1], "o", filled=False),
    "two": Series("shape and spread", SERIES[2], "s", filled=False),
    "three": Series("with the effective dimension", SERIES[0], "o"),
}
HEAD = ("layer", "filters", "dims", "shape", "spread", "effective dims", "measured")
LEGEND = (
    "Spearman's ρ of l1 and l2. The measured value has the 95 % interval of resampled filters, "
    "and a predicted value has the 95 % interval of layers of the model. The shape is that of the "
    "generalized Gaussian distribution of weights divided by the size of their filter, 2 for a "
    "Gaussian. The spread is the standard deviation of the logarithm of the filters' scales."
)


def render(results: dict[str, Any]) -> str:
    networks = results["networks"]
    return page.render(
        results,
        title="Models of trained filters",
        about="the pruning paper",
        heading="Do three numbers of a layer say how alike l1 and l2 rank its filters?",
        summary=paragraphs(*findings(results)) + criteria_defined() + reference("CWDA"),
        sections=[
            ("figure", "Predicted against measured", _figure(networks)),
            *(
                (f"network-{i}", name, paragraphs(LEGEND) + _layers(found["layers"]))
                for i, (name, found) in enumerate(networks.items())
            ),
            ("accuracies", "From overlaps to accuracies", _accuracies(results["accuracies"])),
        ],
        made=provenance(results, {}),
    )


def findings(results: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    for name, found in results["networks"].items():
        parts = [
            f"{MODELS[model]} {row['error']:.3f} ± {row['stderr']:.3f} "
            f"({row['within']} of {row['layers']} layers within their interval)"
            for model, row in found["models"].items()
        ]
        yield f"{name}: the mean error of Spearman's ρ of l1 and l2 is, for {'; '.join(parts)}."
    for name, row in results["accuracies"].items():
        yield (
            f"{_title(name)}: expected overlaps explain {row['explained']:.0%} of the variance of "
            f"differences between two criteria (correlation {row['correlation']:.2f}, permutation "
            f"p {row['p_value']:.3f}); a function of the pair of criteria could explain at most "
            f"{row['by_pair']:.0%}."
        )


def _figure(networks: dict[str, Any]) -> str:
    def paint(axes: Axes, name: str) -> None:
        layers = networks[name]["layers"].values()
        measured = [row["measured"]["spearman"] for row in layers]
        for model, series in SHOWN.items():
            expected = [row["predicted"][model]["spearman"] for row in layers]
            axes.plot(expected, measured, ls="", color=series.colour, **mark(series))
        ends = [min(measured) - 0.01, 1.0]
        axes.plot(ends, ends, color=MUTED, dashes=(4, 2), lw=1.2)

    titles = {name: f"{name}: measured" for name in networks}
    return figure(
        panels(paint, titles, name="models", xlabel="predicted"),
        "Spearman's ρ of l1 and l2, one point for each layer and model. On the dashed line a "
        "prediction is exact.",
        SHOWN.values(),
    )


def _layers(layers: dict[str, Any]) -> str:
    def with_interval(part: dict[str, Any]) -> str:
        low, high = part["interval"]
        return f"{part['spearman']:.3f} ({low:.3f} to {high:.3f})"

    rows = [
        [
            name,
            *(str(row[key]) for key in ("filters", "dims")),
            f"{row['shape']:.2f}",
            f"{row['spread']:.2f}",
            f"{row['effective_dims']:.0f}",
            with_interval(row["measured"]),
            *(with_interval(row["predicted"][model]) for model in MODELS),
        ]
        for name, row in layers.items()
    ]
    return table([*HEAD, *MODELS.values()], rows, "Layers")


def _accuracies(blocks: dict[str, Any]) -> str:
    rows = [
        [
            _title(name),
            str(row["networks"]),
            ", ".join(f"{pair} {points:.2f}" for pair, points in row["points"].items()),
            f"{row['correlation']:.2f}",
            f"{row['explained']:.0%}",
            f"{row['by_pair']:.0%}",
            f"{row['p_value']:.3f}",
        ]
        for name, row in blocks.items()
    ]
    head = ("accuracies", "networks", "mean difference, points", "correlation", "explained")
    text = (
        "Two criteria that prune different filters should differ more in accuracy. The figure "
        "compares the absolute difference of accuracy of each pair of criteria with the share of "
        "filters on which Gaussian rankings of 64 filters of 576 weights, half of them pruned, do "
        "not agree."
    )
    return paragraphs(text) + table([*head, "by the pair", "p"], rows, "Differences of accuracies")


def _title(block: str) -> str:
    """The title of a panel of accuracies, made from a key such as `Table_4:pruned`."""
    return block.replace("_", " ").replace(":", ", ")
