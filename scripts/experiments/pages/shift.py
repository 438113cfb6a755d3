"""The page of `scripts/covariate_shift.py`: findings, sentences and figures."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.measures.networks import OverSeeds, mean
from experiments.pages import page, plots
from experiments.pages.page import cards, figure, paragraphs, table
from experiments.pages.papers import reference
from experiments.pages.plots import MUTED, SERIES, SMALL, Series, curve, line, mark_drops, panels
from experiments.pages.sentences import duration, judged, measured, percent
from experiments.pages.series import MARKERS, MOMENTS, NORMALIZATIONS

UNITS = [Series(f"unit {i + 1}", SERIES[i % 6], MARKERS[i % 5], filled=i < 5) for i in range(8)]
NEAR = 3  # epochs before and after a drop over which the distance is averaged


def findings(results: dict) -> dict[str, Any]:
    """How much skewness and kurtosis still move, and what the distance does at every drop."""
    runs, epochs = results["runs"], results["settings"]["epochs"]
    settled, rates = min(10, epochs // 4), results["learning_rate"]["drops"]
    drops = [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]]
    return {
        "settled": settled,
        "steadiness": {m: _steadiness(runs, m, settled) for m in ("skewness", "kurtosis")},
        "drops": {
            str(epoch + 1): _by_run(runs, lambda seeds, epoch=epoch: mean(_ratios(seeds, epoch)))
            for epoch in drops
        },
        "accuracy": _by_run(runs, lambda seeds: mean(run[-1]["accuracy"] for run in seeds)),
    }


def _by_run(runs: dict, measure: Callable[[list], Any]) -> dict[str, dict[str, Any]]:
    """What is measured of the networks of each normalization and schedule."""
    return {
        norm: {schedule: measure(seeds) for schedule, seeds in schedules.items()}
        for norm, schedules in runs.items()
    }


def _steadiness(runs: dict, name: str, settled: int) -> dict[str, dict[str, OverSeeds]]:
    """By schedule, how much a moment moves under each normalization, and their difference."""
    movement = _by_run(
        runs, lambda seeds: np.array([_movement(run, name, settled) for run in seeds])
    )
    return {
        schedule: {norm: mean(movement[norm][schedule]) for norm in runs}
        | {"difference": mean(movement["unitized"][schedule] - movement["batch_norm"][schedule])}
        for schedule in movement["batch_norm"]
    }


def _movement(run: list[dict], name: str, settled: int) -> float:
    """Mean |change| of a moment from one epoch to the next, over units and epochs."""
    moments = np.array([line["moments"][name] for line in run[settled:]], float)
    return float(np.nanmean(np.abs(np.diff(moments, axis=0))))


def _ratios(seeds: list[list[dict]], epoch: int) -> list[float]:
    """For each seed, the distance after the start of `epoch`, from 0, over that before it."""
    distance = _exact(seeds)
    after, before = distance[:, epoch : epoch + NEAR], distance[:, max(0, epoch - NEAR) : epoch]
    return (after.mean(1) / before.mean(1)).tolist()


def _exact(seeds: list[list[dict]], what: str = "exact") -> np.ndarray:
    """Mean over layers of a distance, (seeds, epochs)."""
    return np.array(
        [[np.mean([d[what] for d in line["shift"].values()]) for line in run] for run in seeds]
    )


def sentences(results: dict) -> Iterator[str]:
    """The findings in words."""
    findings, settings = results["findings"], results["settings"]
    for moment, by_schedule in findings["steadiness"].items():
        drops = by_schedule["drops"]
        values = {name: measured(m["mean"], m["stderr"]) for name, m in drops.items()}
        yield (
            f"{moment.capitalize()} of the 8 units moves by {values['batch_norm']} an epoch under "
            f"batch norm and by {values['unitized']} under unitized batch norm, after epoch "
            f"{findings['settled']}; the difference, paired by seed, is {values['difference']}: "
            f"{judged(drops['difference'], more='less steady', less='steadier')}."
        )
    for epoch, by_norm in findings["drops"].items():
        parts = [
            f"{NORMALIZATIONS[norm].label} {_signed(by['drops'])} "
            f"(at a constant rate {_signed(by['constant'])})"
            for norm, by in by_norm.items()
        ]
        start = f"When the rate falls before epoch {epoch}, the exact distance is multiplied by: "
        yield f"{start}{'; '.join(parts)}."
    if settings["seeds"] > 1:
        yield f"± is one standard error over {settings['seeds']} seeds."


def render(results: dict) -> str:
    """The whole page."""
    results = {key: page.plain(part) for key, part in results.items()}
    data = results["data"]
    return page.render(
        title=f"Moments and covariate shift through training on {data['name']}",
        kicker=f"jaxnorm · {data['name']} · {results['date'].replace('T', ' ')}",
        heading=f"Moments and covariate shift through training on {data['name']}",
        summary=_summary(results),
        sections=[
            ("moments", "Moments of eight units (Figure 2)", _moments(results)),
            ("shift", "Shift and accuracy (Figure 3)", _shift(results)),
            ("run", "How it was made", _run(results)),
        ],
    )


def _summary(results: dict) -> str:
    findings = results["findings"]
    accuracy = {norm: percent(by["drops"]) for norm, by in findings["accuracy"].items()}
    items = [
        (series.label.capitalize(), f"{accuracy[norm]} %", "test accuracy")
        for norm, series in NORMALIZATIONS.items()
    ]
    items += [
        (
            f"Movement of {name}",
            _signed(by["drops"]["difference"]),
            "unitized minus batch norm, an epoch: "
            + judged(by["drops"]["difference"], more="less steady", less="steadier"),
        )
        for name, by in findings["steadiness"].items()
    ]
    device = results["environment"]["device"]
    items.append(("Time", duration(results["seconds"]), f"{device}, since the last start"))
    return cards(items) + paragraphs(_note(results)) + reference("Unitization")


def _note(results: dict) -> str:
    data, settings = results["data"], results["settings"]
    seeds = [seed for schedules in results["runs"].values() for seed in schedules.values()]
    seconds = max(run[-1]["tracker_seconds"] for runs in seeds for run in runs)
    return (
        f"Data: {data['name']}, {data['train']:,} training images; the paper trains 200 epochs on "
        f"MNIST, this run {settings['epochs']}, {settings['seeds']} seeds. {data['note']} "
        "Distances are exact, of the joint outputs for "
        f"{min(settings['exact'], data['probe'])} test images from one epoch to the next, in "
        "the unit of the outputs; the tracker took "
        f"{duration(seconds)} of a network's training. Moments are of the outputs in "
        "inference for all training images."
    )


def _signed(result: dict) -> str:
    return measured(result["mean"], result["stderr"], digits=3)


def _moments(results: dict) -> str:
    text = (
        "One line for each of the eight units of the last normalization, first seed alone. Mean in "
        "the unit of the outputs, variance in its square; skewness and kurtosis have none. The "
        "learning rate drops at the dotted lines."
    )
    said = paragraphs(*list(sentences(results))[:2])
    return said + figure(_moment_panels(results), text, UNITS, "two")


def _moment_panels(results: dict) -> list[str]:
    def paint(axes: Axes, shown: tuple[str, str]) -> None:
        name, norm = shown
        run = results["runs"][norm]["drops"][0]
        values = np.array([line["moments"][name] for line in run], float)
        for unit, series in zip(values.T, UNITS, strict=False):
            line(axes, np.arange(len(run)) + 1, unit, series)
        both = [
            [line["moments"][name] for line in runs["drops"][0]]
            for runs in results["runs"].values()
        ]
        low, high = np.nanquantile(np.array(both, float), (0, 1))
        axes.set_ylim(low - 0.05 * (high - low + 1e-9), high + 0.05 * (high - low + 1e-9))
        _mark(axes, results)

    titles = {
        (name, norm): f"{label}, {series.label}"
        for name, label in MOMENTS.items()
        for norm, series in NORMALIZATIONS.items()
    }
    return panels(paint, titles, name="moments", xlabel="epoch", size=SMALL)


def _shift(results: dict) -> str:
    columns = [(norm, schedule) for norm in NORMALIZATIONS for schedule in ("drops", "constant")]
    head = ["drop before epoch", *(f"{NORMALIZATIONS[n].label}, {s}" for n, s in columns)]
    rows = [
        [epoch, *(_signed(by_norm[n][s]) for n, s in columns)]
        for epoch, by_norm in results["findings"]["drops"].items()
    ]
    return (
        paragraphs(
            "The paper reads a fall of the distance, when accuracy jumps, as a fall of internal "
            "covariate shift. Beside each run with drops of the learning rate stands one from the "
            "same weights without: what falls only in the first follows the step, in batch norm "
            "and unitized batch norm alike."
        )
        + figure(
            _shift_panels(results),
            "Mean over two layers and all seeds" + _band(results),
            NORMALIZATIONS.values(),
            "two",
        )
        + table(head, rows, f"Distance, {NEAR} epochs after over {NEAR} epochs before")
        + figure(
            _bound_panels(results),
            "The exact distance, line, and its bounds, the edges of the band: mean displacement "
            "of an output above, distance of the means below; means over two layers and all seeds. "
            "Dashed: the distance of two halves of the same outputs, which is what no shift at all "
            "looks like between unpaired samples of that size.",
            NORMALIZATIONS.values(),
            "two",
        )
    )


def _band(results: dict) -> str:
    seeds = results["settings"]["seeds"]
    return f"; the band is one standard error over {seeds} seeds." if seeds > 1 else "."


def _shift_panels(results: dict) -> list[str]:
    def accuracy(seeds: list) -> np.ndarray:
        return np.array([[100 * line["accuracy"] for line in run] for run in seeds])

    def paint(axes: Axes, shown: tuple[str, str]) -> None:
        schedule, quantity = shown
        values = accuracy if quantity == "accuracy" else _exact
        for norm, series in NORMALIZATIONS.items():
            runs = values(results["runs"][norm][schedule])
            curve(axes, np.arange(runs.shape[1]) + 1, runs, series)
        if schedule == "drops":
            _mark(axes, results)
        if quantity == "distance":
            plots.log_scale(axes)

    titles = {
        ("drops", "distance"): "distance, outputs' unit; rate with drops",
        ("drops", "accuracy"): "test accuracy, %; rate with drops",
        ("constant", "distance"): "distance, outputs' unit; constant rate",
        ("constant", "accuracy"): "test accuracy, %; constant rate",
    }
    return panels(paint, titles, name="shift", xlabel="epoch", size=SMALL)


def _bound_panels(results: dict) -> list[str]:
    def paint(axes: Axes, norm: str) -> None:
        seeds = results["runs"][norm]["drops"]
        epochs = np.arange(len(seeds[0])) + 1
        low, high, base = (_exact(seeds, what).mean(0) for what in ("lower", "upper", "baseline"))
        axes.fill_between(epochs, low, high, color=NORMALIZATIONS[norm].colour, **plots.BAND)
        axes.plot(epochs, base, color=MUTED, dashes=(4, 2), lw=1.3)
        line(axes, epochs, _exact(seeds).mean(0), NORMALIZATIONS[norm])
        plots.log_scale(axes)
        _mark(axes, results)

    titles = {
        norm: f"distance, outputs' unit; {series.label}" for norm, series in NORMALIZATIONS.items()
    }
    return panels(paint, titles, name="bounds", xlabel="epoch", size=SMALL)


def _mark(axes: Axes, results: dict) -> None:
    epochs = [int(epoch) for epoch in results["findings"]["drops"]]
    mark_drops(axes, results["learning_rate"]["drops"], epochs)


def _run(results: dict) -> str:
    entries = {**results["settings"], **results["environment"]}
    entries["time"] = duration(results["seconds"])
    return page.made(results["command"], page.settings(entries))
