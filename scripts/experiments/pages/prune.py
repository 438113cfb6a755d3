"""The page of pruned networks: accuracies by criterion and stage, and costs before and after."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.pages import page
from experiments.pages.page import cards, figure, made, paragraphs, table
from experiments.pages.plots import draw
from experiments.pages.sentences import duration, number, percent
from experiments.pages.series import CRITERIA

Rows = list[list[str]]


def render(results: dict) -> str:
    parts = {
        "accuracy": ("Trained, pruned, recalibrated, fine-tuned", _accuracy),
        "cost": ("What it cost and gained", _cost),
        "widths": ("Widths", _widths),
        "settings": ("How it was made", _settings),
    }
    name = results["data"]["name"]
    return page.render(
        title=f"Pruning on {name}",
        kicker=f"jaxnorm · {name} · {results['date'].replace('T', ' ')}",
        heading="What is lost, what comes back, and what is gained?",
        summary=_summary(results),
        sections=[(key, title, body(results)) for key, (title, body) in parts.items()],
    )


def tables(results: dict) -> list[tuple[str, Sequence[str], Rows]]:
    """Title, head and rows of the tables of accuracies and of costs."""
    return [accuracy_table(results), cost_table(results)]


def accuracy_table(results: dict) -> tuple[str, Sequence[str], Rows]:
    found = results["accuracy"]
    stages = list(found["spread"])
    rows = [
        [
            CRITERIA[criterion].label,
            percent(found["trained"]),
            *(percent(by_stage[stage]) for stage in stages),
        ]
        for criterion, by_stage in found["by criterion"].items()
    ]
    spread = [f"{100 * found['spread'][stage]['mean']:.2f}" for stage in stages]
    rows.append(["spread, points", "0", *spread])
    rows.append(["Friedman's p", "–", *(number(found["friedman"][s]["p"], 2) for s in stages)])
    seeds = results["settings"]["seeds"]
    networks = "1 network" if seeds == 1 else f"{seeds} networks, ± standard error"
    title = f"Test accuracy on {results['data']['name']} in %, {networks} (Table 4)"
    return title, ["criterion", "trained", *stages], rows


def cost_table(results: dict) -> tuple[str, Sequence[str], Rows]:
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    rows = [
        [name, said(large), said(small), f"{large / small:.2f}"]
        for name, said, large, small in _quantities(before, after)
    ]
    ideal = before["macs"] / after["macs"]
    for size in before["timings"]:
        a, b = (cost["timings"][size]["milliseconds"] for cost in (before, after))
        rows.append([f"of the ideal, batch {size}", "", "", f"{a / b / ideal:.0%}"])
    return "One network of l2 before and after", ["", "trained", "pruned", "ratio"], rows


def _quantities(before: dict, after: dict) -> Iterator[tuple]:
    def counted(value: float) -> str:
        return f"{value:,.0f}"

    def tenths(value: float) -> str:
        return f"{value:,.3g}"

    names = {"parameters": "parameters", "macs": "multiply-accumulates", "size": "bytes on disk"}
    for key, name in names.items():
        yield name, counted, before[key], after[key]
    for size, large in before["timings"].items():
        small = after["timings"][size]
        yield f"ms, batch {size}", tenths, large["milliseconds"], small["milliseconds"]
        rates = (timing["samples_per_second"] for timing in (large, small))
        yield f"images a second, batch {size}", counted, *rates
        yield f"bytes of memory, batch {size}", counted, large["memory"], small["memory"]


def _summary(results: dict) -> str:
    found, options = results["accuracy"], results["options"]
    before, after = results["cost"]["trained"], results["cost"]["pruned"]
    size = max(before["timings"], key=int, default=None)
    items = [
        ("Trained", f"{100 * found['trained']['mean']:.1f} %", "test accuracy"),
        *(
            (stage, f"{100 * low:.1f} to {100 * high:.1f} %", "from criterion to criterion")
            for stage in found["spread"]
            for low, high in [_range(found["by criterion"], stage)]
        ),
        (
            "Multiply-accumulates",
            f"{before['macs'] / after['macs']:.1f} times fewer",
            f"{options['ratio']:.0%} of the channels gone, {options['scope']}",
        ),
    ]
    if size is not None:
        a, b = (cost["timings"][size]["milliseconds"] for cost in (before, after))
        items.append(("Speed", f"{a / b:.2f} times", f"measured at batch {size}"))
    return cards(items) + paragraphs(results["data"]["note"])


def _range(by_criterion: dict, stage: str) -> tuple[float, float]:
    means = [stages[stage]["mean"] for stages in by_criterion.values()]
    return min(means), max(means)


def _accuracy(results: dict) -> str:
    title, head, rows = accuracy_table(results)
    said = (
        "All criteria start from the same trained weights, and each network is a block of "
        "Friedman's test that the criteria do not differ; blocks of one data set are few, so its p "
        "is indicative. Recalibrated: running statistics taken again from training images, no "
        "weight changed. The spread is the largest less the smallest criterion, mean over networks."
    )
    return table(head, rows, title) + paragraphs(said) + _steps(results)


def _steps(results: dict) -> str:
    """Accuracy over the steps of an iterative schedule."""
    runs, ratios = results["accuracy"]["steps"], results["ratios"]
    if len(ratios) < 2:
        return ""

    def paint(axes: Axes, stage: str) -> None:
        for criterion, series in CRITERIA.items():
            values = np.mean([run[criterion][stage] for run in runs], 0)
            axes.plot(ratios, 100 * values, color=series.colour, marker=series.marker)

    panels = [
        draw(
            lambda axes, stage=stage: paint(axes, stage),
            name=f"steps-{stage}",
            title=f"{stage}, %",
            xlabel="channels gone",
        )
        for stage in results["accuracy"]["spread"]
    ]
    return figure(panels, "Test accuracy after each step, mean over networks.", CRITERIA.values())


def _cost(results: dict) -> str:
    title, head, rows = cost_table(results)
    said = (
        f"Measured on {results['environment']['device']} with "
        f"{results['environment']['cores']} cores, compilation left out. The ideal is the ratio of "
        "multiply-accumulates. Running statistics count among the parameters. The checkpoint of "
        f"the small network, widths and kept channels included, takes {results['checkpoint']:,} "
        "bytes."
    )
    return table(head, rows, title) + paragraphs(said)


def _widths(results: dict) -> str:
    widths = results["widths"]
    rows = [[name, f"{n}", f"{widths['pruned'][name]}"] for name, n in widths["trained"].items()]
    return table(["layer", "trained", "pruned"], rows, "Outputs of each layer, first network of l2")


def _settings(results: dict) -> str:
    entries = {**results["settings"], **results["options"], **results["environment"]}
    entries["time"] = duration(results["seconds"])
    rows = [[name, f"{value}"] for name, value in entries.items()]
    return made(results["command"], table(["Setting", "Value"], rows, "Settings"))
