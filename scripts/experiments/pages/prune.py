"""Make the page of pruned networks, with accuracies by criterion and stage, and costs.

The costs are given before and after pruning.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import page
from experiments.pages.page import cards, figure, paragraphs, provenance, table
from experiments.pages.papers import criteria_defined, reference
from experiments.pages.plots import MUTED, SERIES, bars, draw, mark, panels
from experiments.pages.sentences import duration, percent
from experiments.pages.series import CRITERIA

Rows = list[list[str]]
FIRST, LAST = (0.1, 0.25, 0.5), (0.95, 0.6, 0.2)  # The colors of the first and the last layer.
# For each quantity, the name on the page, and the format of numbers.
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


def render(results: dict) -> str:
    name = results["data"]["name"]
    time = {"time": duration(results["seconds"])}
    return page.render(
        results,
        title=f"Pruned networks on {name}",
        about=name,
        heading=f"Pruned networks on {name}: what is lost, recovered and gained?",
        summary=_summary(results),
        sections=[
            (key, title, text)
            for key, title, draw_section in SECTIONS
            if (text := draw_section(results))
        ],
        made=provenance(results, results["settings"] | results["options"] | time),
    )


def tables(results: dict) -> list[tuple[str, Sequence[str], Rows]]:
    """The two tables of the page, accuracies and costs, each as its title, head and rows."""
    return [accuracy_table(results), cost_table(results)]


def accuracy_table(results: dict) -> tuple[str, Sequence[str], Rows]:
    """A table of accuracies by criterion and stage, their ranges, and Friedman's test."""
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
    p_values = (accuracy["friedman"][stage]["p"] for stage in stages)
    rows.append(["Friedman's p", "–", *("–" if p is None else f"{p:.2f}" for p in p_values)])
    seeds = results["settings"]["seeds"]
    networks = "1 network" if seeds == 1 else f"{seeds} networks, ± standard error"
    title = f"Test accuracy on {results['data']['name']} in %, {networks} (Table 4)"
    if results["options"].get("repair") == "merge":
        title += "; clusters are merged whatever the criterion"
    return title, ["criterion", "trained", *stages], rows


def cost_table(results: dict) -> tuple[str, Sequence[str], Rows]:
    """A table of costs before and after pruning, and of the share of each cost that remains."""
    rows = [
        [name, f"{a:{form}}", f"{b:{form}}", f"{b / a:.2f}"] for name, form, a, b in _costs(results)
    ]
    title = "Costs of the first network before and after pruning by l2"
    return title, ["", "trained", "pruned", "pruned / trained"], rows


def _costs(results: dict) -> list[tuple[str, str, float, float]]:
    """Each cost as its name, its format, its value before pruning and its value after pruning."""
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    pairs = [(name, form, before[key], after[key]) for key, (name, form) in COSTS.items()]
    for size, large in before["timings"].items():
        small = after["timings"][size]
        for key, (name, form) in TIMINGS.items():
            pairs.append((f"{name}, batch {size}", form, large[key], small[key]))
    return pairs


def _summary(results: dict) -> str:
    accuracy, options = results["accuracy"], results["options"]
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    size = max(before["timings"], key=int, default=None)
    among = "test accuracy, by criterion"
    items = [
        ("Trained", f"{_points(accuracy['trained']['mean'], 1)} %", "test accuracy"),
        *(
            (stage.capitalize(), f"{_points(low, 1)} to {_points(high, 1)} %", among)
            for stage in accuracy["spread"]
            for low, high in [_range(accuracy, stage)]
        ),
        (
            "Multiply-accumulates",
            f"{before['macs'] / after['macs']:.1f} times fewer",
            _removed(options),
        ),
    ]
    if size is not None:
        a, b = (cost["timings"][size]["milliseconds"] for cost in (before, after))
        note = f"of the time before pruning, {size} images"
        items.append(("Time of a batch", f"{100 * b / a:.0f} %", note))
    return (
        cards(items) + paragraphs(results["data"]["note"]) + criteria_defined() + reference("CWDA")
    )


def _removed(options: dict[str, Any]) -> str:
    if options.get("budget") is None:  # results of earlier versions have no entry `budget`
        return f"{100 * options['ratio']:.3g} % of the channels removed, {options['scope']}"
    return f"a budget of {options['budget']:,.6g} {options['unit']}"


def _range(accuracy: dict, stage: str) -> tuple[float | None, float | None]:
    means = [stages[stage]["mean"] for stages in accuracy["by criterion"].values()]
    known = [mean for mean in means if mean is not None]
    return min(known, default=None), max(known, default=None)


def _points(share: float | None, decimals: int) -> str:
    return "–" if share is None else f"{100 * share:.{decimals}f}"


def _accuracy(results: dict) -> str:
    title, head, rows = accuracy_table(results)
    explanation = (
        "For each criterion, we pruned the same trained networks. “Recalibrated” means that the "
        "running statistics were computed again from training images, without a change of weights. "
        "“Fine-tuned” networks were then trained further. The spread is the largest minus the "
        "smallest accuracy of a network over the criteria, averaged over the networks. Friedman's "
        "test asks whether the criteria differ. For few networks, all trained on the same data, "
        "the p-value is only a hint."
    )
    options = results["options"]
    # results of earlier versions have no entry `repair`
    if (repair := options.get("repair", "none")) != "none":
        explanation += (
            f" Pruned networks were repaired by {repair.replace('_', ' ')} with at most "
            f"{options['repair_images']:,} training images, instead of by folding."
        )
    captions = (
        "Test accuracy of the networks after each stage, for each criterion. The second panel "
        "shows the difference from the mean over the criteria in each network, in percentage "
        "points. Bars show one standard error over networks."
    )
    panels = figure(_stage_panels(results["accuracy"]), captions, CRITERIA.values())
    return panels + table(head, rows, title) + paragraphs(explanation) + _steps(results)


def _stage_panels(accuracy: dict) -> list[str]:
    """Panels of accuracies after each stage, and of differences from the mean over criteria."""
    stages = list(accuracy["spread"])
    by_criterion = [accuracy["by criterion"][criterion] for criterion in CRITERIA]
    values = [[by_stage[stage]["values"] for stage in stages] for by_stage in by_criterion]
    networks = 100 * np.moveaxis(np.array(values), -1, 0)  # accuracies in %

    def paint(axes: Axes, values: np.ndarray) -> None:
        for i, series in enumerate(CRITERIA.values()):
            x = np.arange(len(stages)) + 0.06 * (i - (len(CRITERIA) - 1) / 2)
            bars(axes, x, values[:, i], series)
        axes.set_xticks(range(len(stages)), stages)

    def compare(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, lw=1)
        paint(axes, networks - networks.mean(1, keepdims=True))

    paints = {
        "test accuracy, %": lambda axes: paint(axes, networks),
        "minus the criteria's mean, points": compare,
    }
    return [
        draw(function, name=f"stages-{i}", title=title, xlabel="stage")
        for i, (title, function) in enumerate(paints.items())
    ]


def _steps(results: dict) -> str:
    """A plot of the accuracy after each step of an iterative schedule."""
    runs, ratios = results["accuracy"]["steps"], results["ratios"]
    if len(ratios) < 2:
        return ""

    def paint(axes: Axes, stage: str) -> None:
        for criterion, series in CRITERIA.items():
            values = np.mean([[row[stage] for row in run[criterion]] for run in runs], 0)
            axes.plot(100 * np.array(ratios), 100 * values, color=series.colour, **mark(series))

    titles = {stage: f"{stage}: test accuracy, %" for stage in results["accuracy"]["spread"]}
    return figure(
        panels(paint, titles, name="steps", xlabel="channels removed, %"),
        "Test accuracy after each step of an iterative schedule, averaged over the networks.",
        CRITERIA.values(),
    )


def _cost(results: dict) -> str:
    title, head, rows = cost_table(results)
    cores = results["environment"]["cores"]
    explanation = (
        f"Times were measured on a {results['environment']['device']} with {cores} "
        f"core{'s' * (cores > 1)}, after compilation. Parameters include running statistics. The "
        "checkpoint of the pruned network, with its widths and kept channels, has "
        f"{results['checkpoint']:,} bytes."
    )
    caption = (
        "Each cost of the pruned network, as a share of the cost of the trained network. If only "
        "multiply-accumulates took time, the bars of the times would be as long as the orange bar."
    )
    panel = figure([_cost_panel(results)], caption, columns="one")
    return panel + table(head, rows, title) + paragraphs(explanation)


def _cost_panel(results: dict) -> str:
    shown = [row for row in _costs(results) if "images a second" not in row[0]]
    names, shares = [row[0] for row in shown], [100 * row[3] / row[2] for row in shown]

    def paint(axes: Axes) -> None:
        colours = [SERIES["multiply" in name] for name in names]
        places = range(len(names))
        axes.barh(places, shares, color=colours, height=0.6, alpha=0.75)
        axes.axvline(100, color=MUTED, dashes=(4, 2), lw=1.2)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")

    xlabel = "%; dashed: the trained network"
    size = (4.6, 0.7 + 0.28 * len(names))
    return draw(paint, name="costs", title="pruned / trained", xlabel=xlabel, size=size)


def _sensitivity(results: dict) -> str:
    """A plot with a curve for each layer: the accuracy after channels of this layer are removed."""
    if (scan := results.get("sensitivity")) is None:
        return ""
    ratios, rows = 100 * np.array(scan["ratios"]), scan["accuracy"]

    def paint(axes: Axes) -> None:
        for i, (layer, accuracies) in enumerate(rows.items()):
            shade = i / max(1, len(rows) - 1)
            colour = tuple((1 - shade) * a + shade * b for a, b in zip(FIRST, LAST, strict=True))
            axes.plot(ratios, 100 * np.array(accuracies), color=colour, lw=1.2, label=layer)
        axes.axhline(100 * results["accuracy"]["trained"]["values"][0], color=MUTED, lw=1)
        axes.legend(fontsize=6, frameon=False)

    title, xlabel = "test accuracy, %", "channels of one layer removed, %"
    panel = draw(paint, name="sensitivity", title=title, xlabel=xlabel, size=(4.6, 3.4))
    caption = (
        "Test accuracy of the first network after channels were removed from one layer. The "
        "channels with the smallest l2 norms were removed, together with the channels of other "
        "layers to which they are coupled, without recalibration or training. Curves run from dark "
        "(first layer) to light (last layer), and each curve has the name of the first array that "
        "loses channels. The grey line shows the accuracy before pruning."
    )
    head = ["layer", *(f"{ratio:.0f} %" for ratio in ratios)]
    table_rows = [[layer, *(_points(a, 1) for a in values)] for layer, values in rows.items()]
    return figure([panel], caption, columns="one") + table(
        head, table_rows, "Test accuracy in %, by layer and share of its channels removed"
    )


def _widths(results: dict) -> str:
    widths = results["widths"]
    rows = [[name, f"{n}", f"{widths['pruned'][name]}"] for name, n in widths["trained"].items()]
    caption = "Channels of each layer of the first network, before and after pruning by l2"
    return table(["layer", "trained", "pruned"], rows, caption)


SECTIONS = (
    ("accuracy", "Accuracy", _accuracy),
    ("cost", "Costs", _cost),
    ("widths", "Widths", _widths),
    ("sensitivity", "One layer at a time", _sensitivity),
)
