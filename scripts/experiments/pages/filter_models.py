"""Make the page of `scripts/filter_models.py`, on predicted and measured rankings of filters."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

from experiments.measures.analysis import LEVEL
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
COLUMNS = (
    "The tables show Spearman's ρ between the l1 and l2 norms of the filters in a layer, with 95 % "
    "intervals in parentheses. The interval of a measured ρ comes from resampled filters. The "
    "interval of a predicted ρ contains the ρ of 95 % of the layers that are drawn from the model.",
    "A model has up to three fitted numbers. The shape is that of the generalized Gaussian "
    "distribution of the weights, each divided by the scale of its filter. Gaussian weights have "
    "shape 2. The spread is the standard deviation of the logarithm of the filters' scales. The "
    "effective dimension is a number of independent weights: filters with this number of weights "
    "would have directions that differ as much. The last column replaces the model by the measured "
    "correlation of log l1 and log l2. Its errors come from chance and from the "
    "assumption that log l1 and log l2 are normal.",
)
DIFFERENCES = (
    "Two criteria that prune different filters may lead to different accuracies. From a model of "
    "Gaussian filters, we predicted the share of the pruned filters that two criteria do not have "
    "in common, for 64 filters of 576 weights of which half are pruned. We then correlated this "
    "share with the measured difference in accuracy, for all pairs of criteria in all networks.",
    "The table shows Pearson's correlation, its square (“explained”), and the largest share of the "
    "variance that any function of the pair of criteria could explain (“by the pair”). For the "
    "p-value, the pairs of criteria were permuted within each network. If all pairs of criteria "
    "have the same difference in accuracy, the table has dashes.",
)


def render(results: dict[str, Any]) -> str:
    networks = results["networks"]
    return page.render(
        results,
        title="Models of trained filters",
        about="the pruning paper",
        heading="Can three numbers of a layer predict how similarly l1 and l2 rank its filters?",
        summary=paragraphs(*findings(results)) + criteria_defined() + reference("CWDA"),
        sections=[
            ("figure", "Predicted and measured", _figure(networks) + _errors(networks)),
            *(
                (
                    f"network-{i}",
                    name,
                    paragraphs(*(() if i else COLUMNS)) + _layers(found["layers"]),
                )
                for i, (name, found) in enumerate(networks.items())
            ),
            ("accuracies", "From overlaps to accuracies", _accuracies(results["accuracies"])),
        ],
        made=provenance(results, {}),
    )


def findings(results: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions from `results`, as sentences."""
    for name, found in results["networks"].items():
        errors = {model: f"{row['error']:.3f}" for model, row in found["models"].items()}
        yield (
            f"{name}: we predicted Spearman's ρ between the l1 and l2 norms of the filters in a "
            f"layer. The mean absolute error over {len(found['layers'])} layers is "
            f"{errors['gaussian']} for a model of Gaussian filters, {errors['two']} if the shape "
            f"and the spread of the weights are fitted, and {errors['three']} if the effective "
            f"dimension is fitted, too. If the measured correlation of "
            f"log l1 and log l2 replaces the fits, the error is {errors['logs']}."
        )
    blocks = [row for row in results["accuracies"].values() if row["explained"] is not None]
    explained = sorted(row["explained"] for row in blocks)
    yield (
        "We also predicted which share of the pruned filters two criteria do not have in common. "
        f"This share explains {explained[0]:.0%} to {explained[-1]:.0%} of the variance of the "
        "accuracy differences between criteria. The correlation is significant in "
        f"{sum(row['p_value'] < LEVEL for row in blocks)} of {len(explained)} sets of networks "
        f"(permutation tests at {LEVEL:.0%}, without correction for the number of tests)."
    )


def _errors(networks: dict[str, Any]) -> str:
    rows = [
        [
            f"{name}, {MODELS[model]}",
            f"{row['error']:.3f} ± {row['stderr']:.3f}",
            f"{row['within']} of {row['layers']}",
        ]
        for name, found in networks.items()
        for model, row in found["models"].items()
    ]
    head = ("network, model", "mean absolute error", "layers within the interval of the model")
    return table(head, rows, "Errors of the predicted ρ ± standard errors over layers")


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
        "Spearman's ρ between the l1 and l2 norms of the filters in a layer. Each mark is a layer "
        "and a model. On the dashed line, the predicted ρ equals the measured ρ.",
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
    return table([*HEAD, *MODELS.values()], rows, "Spearman's ρ of l1 and l2 in each layer")


def _accuracies(blocks: dict[str, Any]) -> str:
    rows = [
        [
            _title(name),
            str(row["networks"]),
            ", ".join(f"{pair} {points:.2f}" for pair, points in row["points"].items()),
            _formatted(row["correlation"], ".2f"),
            _formatted(row["explained"], ".0%"),
            _formatted(row["by_pair"], ".0%"),
            _formatted(row["p_value"], ".3f"),
        ]
        for name, row in blocks.items()
    ]
    head = ("accuracies", "networks", "mean difference, points", "correlation", "explained")
    caption = "Predicted overlap and measured differences in accuracy"
    return paragraphs(*DIFFERENCES) + table([*head, "by the pair", "p"], rows, caption)


def _formatted(value: float | None, spec: str) -> str:
    """The number as text, or a dash if the criteria have equal accuracies."""
    return "–" if value is None else format(value, spec)


def _title(block: str) -> str:
    """The title of a panel of accuracies, made from a key such as `Table_4:pruned`."""
    return block.replace("_", " ").replace(":", ", ")
