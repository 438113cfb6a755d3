"""Make the page of repaired networks, which are networks on digits and a ResNet-20."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.measures.repair import (
    CONTROL,
    Mean,
    Table,
    margin,
    mean_of,
    of_images,
    of_networks,
    p_value,
    ratios,
    repairs,
    unpack,
    values_of_criteria,
)
from experiments.pages import page
from experiments.pages.papers import criteria_defined
from experiments.pages.plots import BAND, MUTED, SERIES, Series, panels
from experiments.pages.series import CRITERIA

HEAD = (
    "network, removed",
    "repair",
    "accuracy, %",
    "at random, %",
    "Friedman's p",
    "margin",
    "seconds",
    "MB",
)
MARKERS = ("o", "s", "^", "D", "*")
CONTROLLED = CRITERIA | {CONTROL: Series("random", MUTED, "*")}
COMPARED = ("folded", "recalibrated", "least squares", "fine-tuned, one epoch")


def render(digits: dict[str, Any], resnet: dict[str, Any]) -> str:
    """The HTML of the page, from the results in digits.json and in resnet20.json."""
    tables = of_networks(digits) | of_images(resnet)
    spent = took(digits["rows"]) | took(resnet["rows"])
    return page.render(
        resnet,
        title="Pruned networks repaired",
        about="repair without training",
        heading="How much accuracy comes without training?",
        summary=page.cards(
            (name, f"{100 * value:.1f} %", "nothing removed")
            for name, value in whole(digits, resnet).items()
        )
        + page.paragraphs(answer(tables))
        + criteria_defined(),
        sections=[
            ("figure", "Accuracy against what is removed", by_repair(tables)),
            ("criteria", "By criterion", by_criterion(tables)),
            ("table", "By repair", page.table(HEAD, lines(tables, spent), CAPTION)),
        ],
        made="".join(map(_settings, (digits, resnet))),
    )


CAPTION = (
    "Test accuracy, averaged over criteria. Standard errors are over networks. For ResNet-20, one "
    "network, they combine errors over test images and over draws of the images that repair the "
    "network. “At random” is the same repair of randomly removed channels, which enters no mean "
    "and no test. Friedman's test asks whether the criteria differ, without correction; its "
    "blocks are networks, or test images averaged over draws. The margin, in points, is the "
    "smallest for which all pairs of criteria are equivalent by two one-sided paired t tests at 5 "
    "%, with the same errors. Merging uses no data; clusters and the greedy choice use no "
    "criterion. Seconds are medians: wall time on a busy machine for digits, processor time for "
    "ResNet-20. MB are the memory in addition to what the process had before, for programs that "
    "an earlier criterion has compiled."
)


def whole(digits: dict[str, Any], resnet: dict[str, Any]) -> dict[str, float]:
    """The test accuracy of each network before pruning, as a mean over seeds or draws."""
    found: dict[str, list[float]] = {}
    for network in digits["whole"]:
        found.setdefault(f"digits, {network['network']}", []).append(network["accuracy"])
    count = resnet["settings"]["test"]
    found["ResNet-20"] = [float(unpack(resnet["whole"], count).mean())]
    fresh = resnet["whole, recalibrated"]
    found["ResNet-20, recalibrated"] = [float(unpack(text, count).mean()) for text in fresh]
    return {name: float(np.mean(values)) for name, values in found.items()}


def answer(table: Table) -> str:
    """A text with the margins within which all criteria are equivalent after two of the repairs.

    The two repairs are recalibration and least squares. The text has one margin for each network
    and each of the two repairs. The margin is for the largest share of removed channels that was
    measured for the network.
    """
    known = {"recalibrated": "recalibrated", "least squares": "after least squares"}
    sentences = []
    for network in dict.fromkeys(name for name, _, _ in table):
        ratio = ratios(table, network)[-1]
        limits = {
            name: margin(table[network, ratio, repair])
            for repair, name in known.items()
            if (network, ratio, repair) in table  # an unfinished run lacks some repairs
        }
        parts = [f"{100 * x:.1f} points {name}" for name, x in limits.items() if x is not None]
        where = f"{network}, {100 * ratio:.0f} % removed"
        sentences.append(f"{where}: {' and '.join(parts) or 'one criterion was measured'}")
    return (
        "Do the criteria differ after a repair of the outputs? All pairs of criteria are "
        f"equivalent within these margins of accuracy: {'; '.join(sentences)}."
    )


def lines(table: Table, spent: dict[tuple[str, str], list[float]]) -> list[list[str]]:
    rows = []
    for (network, ratio, repair), cells in sorted(table.items(), key=lambda item: item[0][:2]):
        control = mean_of(cells[CONTROL]) if CONTROL in cells else None
        p, limit = p_value(cells), margin(cells)
        rows.append(
            [
                f"{network}, {ratio:.0%}",
                repair,
                percent(mean_of(values_of_criteria(cells).mean(0))),
                "–" if control is None else percent(control),
                "–" if p is None else probability(p),
                "–" if limit is None else f"{100 * limit:.1f}",
                *(f"{x:,.0f}" if np.isfinite(x) else "–" for x in spent[network, repair]),
            ]
        )
    return rows


def percent(value: Mean) -> str:
    error = f" ± {100 * value.stderr:.1f}" if np.isfinite(value.stderr) else ""
    return f"{100 * value.mean:.1f}{error}"


def probability(p: float) -> str:
    return f"{p:.2f}" if p >= 0.005 else f"{p:.0e}"


def took(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """For each network and repair, the median seconds and, if measured, the memory in MB."""
    spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        key = row.get("network", "ResNet-20"), row["repair"]
        spent.setdefault(key, []).append((row["seconds"], row.get("megabytes", np.nan)))
    return {key: np.median(values, axis=0).tolist() for key, values in spent.items()}


def by_repair(table: Table) -> str:
    """A panel for each network; the panel has a curve for each repair."""
    names = list(dict.fromkeys(repair for _, _, repair in table))
    series = {
        repair: Series(repair, SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)], i < len(SERIES))
        for i, repair in enumerate(names)
    }

    def paint(axes: Axes, network: str) -> None:
        for repair in repairs(table, network):
            points = {
                ratio: mean_of(values_of_criteria(table[network, ratio, repair]).mean(0))
                for ratio in ratios(table, network)
                if (network, ratio, repair) in table
            }
            curve(axes, points, series[repair])

    titles = {name: f"{name}, %" for name in dict.fromkeys(name for name, _, _ in table)}
    return page.figure(
        panels(paint, titles, name="repair", xlabel="channels removed, %"),
        "Test accuracy, averaged over criteria. A band is one standard error to either side: over "
        "networks, and for ResNet-20 over test images and draws of the images that repair the "
        "network.",
        series.values(),
    )


def by_criterion(table: Table) -> str:
    """A panel for each repair of the ResNet-20; the panel has a curve for each criterion."""
    network = "ResNet-20"

    def paint(axes: Axes, repair: str) -> None:
        for criterion, series in CONTROLLED.items():
            points = {
                ratio: mean_of(table[network, ratio, repair][criterion])
                for ratio in ratios(table, network)
                if criterion in table.get((network, ratio, repair), {})
            }
            curve(axes, points, series)

    shown = [repair for repair in COMPARED if repair in repairs(table, network)]
    titles = {repair: f"{network}, {repair}, %" for repair in shown}
    return page.figure(
        panels(paint, titles, name="criteria", xlabel="channels removed, %"),
        "Test accuracy of ResNet-20. A band is one standard error to either side, over test "
        "images and draws of the images that repair the network. All criteria see the same "
        "images, so their errors are correlated; the table tests whether the criteria differ.",
        CONTROLLED.values(),
    )


def curve(axes: Axes, points: dict[float, Mean], series: Series) -> None:
    x = 100 * np.array(list(points))
    mean, error = (
        100 * np.array([getattr(p, k) for p in points.values()]) for k in Mean._fields[:2]
    )
    axes.plot(x, mean, color=series.colour, marker=series.marker)
    axes.fill_between(x, mean - error, mean + error, color=series.colour, **BAND)


def _settings(run: dict[str, Any]) -> str:
    entries = {"command": run["command"], "date": run["date"], "data": run["data"]}
    return page.settings(entries | run["settings"] | run["environment"])
