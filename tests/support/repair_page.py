"""The page of repaired networks, docs/results/repair/index.html, from the runs beside it.

`results_pages.py` writes it, of digits.json of `repair_digits.py` and resnet20*.json of
`repair_table.py`.
"""

import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from matplotlib.axes import Axes

from experiments.measures.pruned import friedman
from experiments.pages import page
from experiments.pages.plots import BAND, SERIES, Series, panels

FOLDER = Path(__file__).parents[2] / "docs/results/repair"
HEAD = ("network, removed", "repair", "accuracy, %", "Friedman's p", "margin", "seconds")
MARKERS = ("o", "s", "^", "D", "*")
Table = dict[tuple[str, float, str], np.ndarray]
"""Accuracies of blocks, the rows, by criterion: by network, ratio and repair."""


def render(digits: dict[str, Any]) -> str:
    """The page of the perceptrons on digits and of the residual networks beside them."""
    resnets = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("resnet20*.json"))]
    tables = [of_networks(digits), *map(of_images, resnets)]
    rows = [
        row
        for table, run in zip(tables, [digits, *resnets], strict=True)
        for row in lines(table, by_repair(run["rows"]))
    ]
    whole = {
        "digits": np.mean([network["accuracy"] for network in digits["whole"]]),
        "ResNet-20": np.mean(resnets[0]["whole"]),
        "ResNet-20, recalibrated": np.mean(resnets[0]["whole, recalibrated"]),
    }
    return page.render(
        title="Pruned networks repaired",
        kicker=f"jaxnorm · {digits['date'][:10]}",
        heading="How much accuracy comes without training?",
        summary=page.cards(
            (name, f"{100 * value:.1f} %", "nothing removed") for name, value in whole.items()
        ),
        sections=[
            ("figure", "Accuracy against what is removed", figures(tables)),
            ("table", "By repair", page.table(HEAD, rows, CAPTION)),
            ("settings", "How it was made", "".join(map(made, [digits, *resnets]))),
        ],
    )


CAPTION = (
    "Test accuracy, mean over criteria and standard error over networks; of ResNet-20, one "
    "network, over test images. Friedman's test that the criteria do not differ. The margin, in "
    "points, within which all pairs of criteria are equivalent by two one-sided paired t tests at "
    "5 %, over networks or over test images. Seconds are medians on a busy "
    "machine. Merging sees no data; clusters and the greedy choice look at no criterion. ResNet-20 "
    "was fine-tuned at 30 % without taking its statistics again: no fair baseline."
)


def of_networks(run: dict[str, Any]) -> Table:
    return _blocks(
        ((row["network"], row["ratio"], row["repair"]), row["criterion"], [row["accuracy"]])
        for row in run["rows"]
    )


def of_images(run: dict[str, Any]) -> Table:
    return _blocks(
        (("ResNet-20", row["ratio"], row["repair"]), row["criterion"], row["correct"])
        for row in run["rows"]
    )


def _blocks(rows: Iterable[tuple[tuple[str, float, str], str, list[float]]]) -> Table:
    found: dict[Any, dict[str, list[float]]] = {}
    for key, criterion, values in rows:
        found.setdefault(key, {}).setdefault(criterion, []).extend(values)
    return {key: np.array(list(by.values()), float).T for key, by in found.items()}


def lines(table: Table, seconds: dict[str, float]) -> list[list[str]]:
    rows = []
    for (network, ratio, repair), values in sorted(table.items(), key=lambda item: item[0][:2]):
        blocks, criteria = values.shape
        error = f" ± {100 * scipy.stats.sem(values.mean(1)):.1f}" if blocks > 1 else ""
        p = friedman(values)["p"] if criteria > 2 else None
        both = blocks > 1 and criteria > 1
        rows.append(
            [
                f"{network}, {ratio:.0%}",
                repair,
                f"{100 * values.mean():.1f}{error}",
                "–" if p is None else f"{p:.2f}",
                f"{100 * margin(values):.1f}" if both else "–",
                f"{seconds[repair]:.0f}",
            ]
        )
    return rows


def margin(values: np.ndarray) -> float:
    """The smallest margin within which the means of all pairs of columns are equivalent."""
    t = scipy.stats.t.ppf(0.95, len(values) - 1)
    pairs = (values[:, i] - values[:, j] for i, j in combinations(range(values.shape[1]), 2))
    return max(abs(d.mean()) + t * scipy.stats.sem(d) for d in pairs)


def by_repair(rows: list[dict[str, Any]]) -> dict[str, float]:
    spent: dict[str, list[float]] = {}
    for row in rows:
        spent.setdefault(row["repair"], []).append(row["seconds"])
    return {repair: float(np.median(values)) for repair, values in spent.items()}


def figures(tables: list[Table]) -> str:
    together = {key: values for table in tables for key, values in table.items()}
    repairs = list(dict.fromkeys(repair for _, _, repair in together))
    series = {
        repair: Series(repair, SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)], i < len(SERIES))
        for i, repair in enumerate(repairs)
    }

    def paint(axes: Axes, network: str) -> None:
        for repair, style in series.items():
            x = sorted(r for n, r, m in together if (n, m) == (network, repair))
            points = [100 * together[network, ratio, repair].mean(1) for ratio in x]
            mean = np.array([values.mean() for values in points])
            axes.plot(x, mean, color=style.colour, marker=style.marker)
            if all(len(values) > 1 for values in points):
                error = np.array([scipy.stats.sem(values) for values in points])
                axes.fill_between(x, mean - error, mean + error, color=style.colour, **BAND)

    titles = {name: f"{name}, %" for name in dict.fromkeys(name for name, _, _ in together)}
    return page.figure(
        panels(paint, titles, name="repair", xlabel="channels removed"),
        "Test accuracy, mean over criteria; bands of one standard error.",
        series.values(),
    )


def made(run: dict[str, Any]) -> str:
    entries = {"command": run["command"], "date": run["date"], "data": run["data"]}
    entries |= run.get("options", {}) | run.get("settings", {}) | run["environment"]
    return page.settings(entries)
