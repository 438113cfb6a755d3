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
        heading="How much accuracy does a repair restore without training?",
        summary=page.cards(
            (name, f"{100 * value:.1f} %", "accuracy before pruning")
            for name, value in whole(digits, resnet).items()
        )
        + page.paragraphs(*REPAIRS, answer(tables))
        + criteria_defined(),
        sections=[
            ("figure", "Accuracy of each repair", by_repair(tables)),
            ("criteria", "Accuracy of each criterion", by_criterion(tables)),
            (
                "table",
                "Table",
                page.paragraphs(*COLUMNS) + page.table(HEAD, lines(tables, spent), CAPTION),
            ),
        ],
        made="".join(map(_settings, (digits, resnet))),
    )


CAPTION = "Test accuracy, averaged over the criteria, ± standard error"
REPAIRS = (
    "We removed channels from trained networks, repaired the networks, and measured the test "
    "accuracy. “Folded” means that the constant outputs of removed channels are added to biases. "
    "“Recalibrated” means that the running statistics are computed again. “Least squares” fits "
    "all weights of the next layer to the outputs of the unpruned network, and “scaled” fits only "
    "the scale of each output. “Merged” means that similar channels are averaged without data, as "
    "decided by clusters or by a transport plan. “Greedy” means that the channels were chosen by "
    "the error that their removal causes in the next layer. For comparison, “fine-tuned” networks "
    "were recalibrated and trained for one epoch with labels.",
)
COLUMNS = (
    "Standard errors are over networks. There is only one ResNet-20, so its standard errors "
    "combine the errors over test images and over draws of the images for the repair. For the "
    "column “at random”, random channels were removed and the network was repaired in the same "
    "way. Random channels are not a criterion in the other columns.",
    "Friedman's test asks whether the criteria differ. Its blocks are networks or, for ResNet-20, "
    "test images averaged over draws. The p-values are not corrected for the number of tests. The "
    "margin is in percentage points: the mean accuracies of any two criteria differ by less (two "
    "one-sided paired t tests at 5 %). Clusters and the greedy choice replace the criteria.",
    "Seconds are medians over the criteria: elapsed time on a busy machine for digits, and "
    "processor time for ResNet-20. MB are the memory that a repair needed in addition to the "
    "memory of the process, if all programs are already compiled.",
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
    known = {"recalibrated": "after recalibration", "least squares": "after least squares"}
    sentences = []
    for network in dict.fromkeys(name for name, _, _ in table):
        ratio = ratios(table, network)[-1]
        limits = {
            name: margin(table[network, ratio, repair])
            for repair, name in known.items()
            if (network, ratio, repair) in table  # an unfinished run lacks some repairs
        }
        parts = [f"{100 * x:.1f} points {name}" for name, x in limits.items() if x is not None]
        found = f"the margin is {' and '.join(parts)}" if parts else "one criterion was measured"
        sentences.append(
            f"If {100 * ratio:.0f} % of the channels are removed ({network}), {found}."
        )
    return (
        "Do the criteria lead to different accuracies after a repair? The mean accuracies of any "
        f"two criteria differ by less than a margin. {' '.join(sentences)}"
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
        "Test accuracy, averaged over the criteria. The highest curves are the best repairs. A "
        "band shows one standard error above and below the mean: over networks or, for ResNet-20, "
        "over test images and over draws of the images for the repair.",
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
        "Test accuracy of the ResNet-20. The nearer the curves, the less the choice of the "
        "criterion matters. A band shows one standard error above and below the mean, over test "
        "images and over draws of the images for the repair. All criteria use the same images, so "
        "their errors are correlated. The table tests whether the criteria differ.",
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
