"""The page of pruned networks: accuracies by criterion and stage, and costs before and after."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.measures.pruned import Accuracy, Results
from experiments.pages import page
from experiments.pages.page import cards, figure, made, paragraphs, table
from experiments.pages.plots import panels
from experiments.pages.sentences import duration, number, percent
from experiments.pages.series import CRITERIA

Rows = list[list[str]]
# Names of quantities, and how they are written.
COSTS = {
    "parameters": ("parameters", ",.0f"),
    "macs": ("multiply-accumulates", ",.0f"),
    "size": ("bytes on disk", ",.0f"),
}
TIMINGS = {
    "milliseconds": ("ms", ",.3g"),
    "samples_per_second": ("images a second", ",.0f"),
    "memory": ("bytes of memory", ",.0f"),
}


def render(results: Results) -> str:
    """The whole page."""
    name = results["data"]["name"]
    return page.render(
        title=f"Pruning on {name}",
        kicker=f"jaxnorm · {name} · {results['date'].replace('T', ' ')}",
        heading="What is lost, what is recovered, and what is gained?",
        summary=_summary(results),
        sections=[(key, title, section(results)) for key, title, section in SECTIONS],
    )


def tables(results: Results) -> list[tuple[str, Sequence[str], Rows]]:
    """Title, head and rows of the tables of accuracies and of costs."""
    return [accuracy_table(results), cost_table(results)]


def accuracy_table(results: Results) -> tuple[str, Sequence[str], Rows]:
    """Accuracies by criterion and stage, their spread and Friedman's test."""
    accuracy = results["accuracy"]
    stages = list(accuracy["spread"])
    rows = [
        [
            CRITERIA[criterion].label,
            percent(accuracy["trained"]),
            *(percent(by_stage[stage]) for stage in stages),
        ]
        for criterion, by_stage in accuracy["by criterion"].items()
    ]
    spread = [_points(accuracy["spread"][stage]["mean"], 2) for stage in stages]
    rows.append(["spread, points", "0", *spread])
    rows.append(["Friedman's p", "–", *(number(accuracy["friedman"][s]["p"], 2) for s in stages)])
    seeds = results["settings"]["seeds"]
    networks = "1 network" if seeds == 1 else f"{seeds} networks, ± standard error"
    title = f"Test accuracy on {results['data']['name']} in %, {networks} (Table 4)"
    return title, ["criterion", "trained", *stages], rows


def cost_table(results: Results) -> tuple[str, Sequence[str], Rows]:
    """Costs before and after, and their ratio."""
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    pairs = [(name, form, before[key], after[key]) for key, (name, form) in COSTS.items()]
    for size, large in before["timings"].items():
        small = after["timings"][size]
        for key, (name, form) in TIMINGS.items():
            pairs.append((f"{name}, batch {size}", form, large[key], small[key]))
    rows = [[name, f"{a:{form}}", f"{b:{form}}", f"{a / b:.2f}"] for name, form, a, b in pairs]
    ideal = before["macs"] / after["macs"]
    for size in before["timings"]:
        a, b = (cost["timings"][size]["milliseconds"] for cost in (before, after))
        rows.append([f"of the ideal, batch {size}", "", "", f"{a / b / ideal:.0%}"])
    return "One network of l2 before and after", ["", "trained", "pruned", "ratio"], rows


def _summary(results: Results) -> str:
    accuracy, options = results["accuracy"], results["options"]
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    size = max(before["timings"], key=int, default=None)
    items = [
        ("Trained", f"{_points(accuracy['trained']['mean'], 1)} %", "test accuracy"),
        *(
            (stage, f"{_points(low, 1)} to {_points(high, 1)} %", "from criterion to criterion")
            for stage in accuracy["spread"]
            for low, high in [_range(accuracy, stage)]
        ),
        (
            "Multiply-accumulates",
            f"{before['macs'] / after['macs']:.1f} times fewer",
            f"{options['ratio']:.0%} of the channels removed, {options['scope']}",
        ),
    ]
    if size is not None:
        a, b = (cost["timings"][size]["milliseconds"] for cost in (before, after))
        items.append(("Speed", f"{a / b:.2f} times", f"measured at batch {size}"))
    return cards(items) + paragraphs(results["data"]["note"])


def _range(accuracy: Accuracy, stage: str) -> tuple[float | None, float | None]:
    means = [stages[stage]["mean"] for stages in accuracy["by criterion"].values()]
    known = [mean for mean in means if mean is not None]
    return min(known, default=None), max(known, default=None)


def _points(share: float | None, decimals: int) -> str:
    return "–" if share is None else f"{100 * share:.{decimals}f}"


def _accuracy(results: Results) -> str:
    title, head, rows = accuracy_table(results)
    explanation = (
        "All criteria start from the same trained weights, and each network is a block of "
        "Friedman's test that the criteria do not differ; blocks of one data set are few, so its p "
        "is indicative. Recalibrated: running statistics taken again from training images, no "
        "weight changed. The spread is the largest minus the smallest criterion, mean over "
        "networks."
    )
    options = results["options"]
    if (repair := options.get("repair", "none")) != "none":  # not in results of earlier versions
        explanation += (
            f" Pruned: repaired by {repair.replace('_', ' ')} on {options['repair_images']:,} "
            "training images at most, without a gradient step, in place of folding."
        )
    return table(head, rows, title) + paragraphs(explanation) + _steps(results)


def _steps(results: Results) -> str:
    """Accuracy over the steps of an iterative schedule."""
    runs, ratios = results["accuracy"]["steps"], results["ratios"]
    if len(ratios) < 2:
        return ""

    def paint(axes: Axes, stage: str) -> None:
        for criterion, series in CRITERIA.items():
            values = np.mean([[row[stage] for row in run[criterion]] for run in runs], 0)
            axes.plot(ratios, 100 * values, color=series.colour, marker=series.marker)

    titles = {stage: f"{stage}, %" for stage in results["accuracy"]["spread"]}
    return figure(
        panels(paint, titles, name="steps", xlabel="channels removed"),
        "Test accuracy after each step, mean over networks.",
        CRITERIA.values(),
    )


def _cost(results: Results) -> str:
    title, head, rows = cost_table(results)
    explanation = (
        f"Measured on {results['environment']['device']} with "
        f"{results['environment']['cores']} cores, compilation left out. The ideal is the ratio of "
        "multiply-accumulates. Running statistics count among the parameters. The checkpoint of "
        f"the small network, widths and kept channels included, takes {results['checkpoint']:,} "
        "bytes."
    )
    return table(head, rows, title) + paragraphs(explanation)


def _widths(results: Results) -> str:
    widths = results["widths"]
    rows = [[name, f"{n}", f"{widths['pruned'][name]}"] for name, n in widths["trained"].items()]
    return table(["layer", "trained", "pruned"], rows, "Outputs of each layer, first network of l2")


def _settings(results: Results) -> str:
    entries = {**results["settings"], **results["options"], **results["environment"]}
    entries["time"] = duration(results["seconds"])
    return made(results["command"], page.settings(entries))


SECTIONS = (
    ("accuracy", "Trained, pruned, recalibrated, fine-tuned", _accuracy),
    ("cost", "What it cost and gained", _cost),
    ("widths", "Widths", _widths),
    ("settings", "How it was made", _settings),
)
