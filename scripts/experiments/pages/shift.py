"""Make the page of `scripts/covariate_shift.py`, with findings, sentences and figures."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from scipy import stats

import pruning
from experiments.measures.analysis import LEVEL
from experiments.measures.networks import OverSeeds, mean
from experiments.measures.shift import FREE
from experiments.pages import page, plots
from experiments.pages.page import cards, figure, paragraphs, table
from experiments.pages.papers import reference
from experiments.pages.plots import MUTED, SERIES, SMALL, Series, curve, line, mark_drops, panels
from experiments.pages.sentences import duration, number, percent, value_with_error
from experiments.pages.series import MARKERS, MOMENTS, NORMALIZATIONS, unitized_defined

UNITS = [Series(f"unit {i + 1}", SERIES[i % 6], MARKERS[i % 5], filled=i < 5) for i in range(8)]
KINDS = {
    "whole set": Series("statistics of the whole training set", SERIES[0], "o"),
    "running": Series("running averages", SERIES[1], "s", filled=False),
    "batch": Series("statistics of each batch", SERIES[2], "^"),
}
PLACES = {"norm first": "before", "ReLU first": "after"}
# Means are over this number of epochs before a drop of the learning rate, and after the drop.
NEAR = 3
AT_DROPS = (
    f"Mean distance in the {NEAR} epochs after a drop of the learning rate, divided by the mean "
    f"distance in the {NEAR} epochs before the drop. In a row with a constant rate, the rate does "
    "not drop, and the same epochs are compared."
)
FROZEN = (
    "Distance with frozen weights, divided by the distance in an epoch of training, in the second "
    "half of each period of constant rate. If the value is near 1 or above 1, the change of the "
    "statistics hides the shift."
)

Runs = Sequence[dict[str, Any]]


def select(runs: Runs, **where: object) -> list[dict[str, Any]]:
    """The runs whose entries are equal to the entries of `where`."""
    return [run for run in runs if all(run[name] == value for name, value in where.items())]


def findings(results: dict) -> dict[str, Any]:
    """Compute the findings that the page shows, as numbers.

    The findings are changes of the distance at drops of the learning rate, noise floors, distances
    divided by learning rates, changes of moments, and accuracies. The entry `settled` is the number
    of first epochs whose changes of moments are not counted. All other entries are lists of
    records. A record names its networks and, if needed, its kind of statistics.
    """
    runs, rates = results["runs"], results["learning_rate"]
    drops = [e for e in range(1, len(rates)) if rates[e] < rates[e - 1]]
    settled = min(10, len(rates) // 4)
    groups = _groups(runs)
    return {
        "settled": settled,
        "drops": [
            group | {"kind": kind, "epoch": epoch + 1, "ratio": _ratio(found, kind, epoch)}
            for group, found in groups
            for kind in KINDS
            for epoch in drops
        ],
        "floor": [
            group | {"kind": kind, "phase": list(phase), "share": _floor_share(found, kind, phase)}
            for group, found in groups
            for kind in ("running", "batch")
            for phase in _phases(drops, len(rates))
        ],
        "per_rate": [
            group | {"phase": list(phase), "shift": _per_rate(found, rates, phase)}
            for group, found in groups
            if group["schedule"] == "drops"
            for phase in _phases(drops, len(rates))
        ],
        "movement": _movements(runs, settled),
        "accuracy": [
            group | {"accuracy": mean(run["accuracy"][-1] for run in found)}
            for group, found in groups
        ],
    }


def _groups(runs: Runs) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Groups of networks that differ only in their seeds; each group comes with its settings."""
    names = ("schedule", "order", "normalization")
    keys = dict.fromkeys(tuple(run[name] for name in names) for run in runs)
    shared: list[dict[str, Any]] = [dict(zip(names, key, strict=True)) for key in keys]
    return [(group, select(runs, **group)) for group in shared]


def _phases(drops: Sequence[int], epochs: int) -> list[tuple[int, int]]:
    """For each phase with a constant learning rate, the phase's first epoch and the next phase's.

    Epochs are counted from 0.
    """
    return list(itertools.pairwise([0, *drops, epochs]))


def distance(run: dict, kind: str, what: str = "exact") -> np.ndarray:
    """For each epoch, the mean distance over layers or, if `what` is "floor", the noise floor."""
    return np.mean([layer[what] for layer in run["shift"][kind].values()], 0)


def _ratio(runs: Runs, kind: str, epoch: int) -> OverSeeds:
    """The mean distance from `epoch` on, divided by the mean distance before `epoch`.

    Each mean is over `NEAR` epochs, or over fewer epochs near the start or the end of the run.
    """

    def ratio(run: dict) -> float:
        found = distance(run, kind)
        return found[epoch : epoch + NEAR].mean() / found[max(0, epoch - NEAR) : epoch].mean()

    return mean(map(ratio, runs))


def _late(phase: tuple[int, int]) -> slice:
    """The second half of a phase, in which the network has adapted to the learning rate."""
    first, end = phase
    return slice((first + end) // 2, end)


def _floor_share(runs: Runs, kind: str, phase: tuple[int, int]) -> OverSeeds:
    """The distance that outputs move with frozen weights, divided by the distance in an epoch."""
    late = _late(phase)
    return mean(
        distance(run, kind, "floor")[late].mean() / distance(run, kind)[late].mean() for run in runs
    )


def _per_rate(runs: Runs, rates: Sequence[float], phase: tuple[int, int]) -> OverSeeds:
    """The distance in an epoch, with statistics of the whole set, divided by the learning rate."""
    late = _late(phase)
    return mean(distance(run, "whole set")[late].mean() / rates[phase[0]] for run in runs)


def _movements(runs: Runs, settled: int) -> list[dict[str, Any]]:
    """How moments change in an epoch with each normalization, and the differences paired by seed.

    For statistics of the whole set, Holm's method corrects the p-values for the number of tests
    over all moments, orders and schedules.
    """
    groups = dict.fromkeys((run["schedule"], run["order"]) for run in runs)
    records = []
    for (schedule, order), kind, moment in itertools.product(groups, KINDS, FREE):
        chosen = select(runs, schedule=schedule, order=order)
        pair = _by_normalization(chosen, "movement", kind, moment, settled)
        difference = pair["unitized"] - pair["batch_norm"]
        records.append(
            {"schedule": schedule, "order": order, "kind": kind, "moment": moment}
            | {norm: mean(values) for norm, values in pair.items()}
            | {"difference": mean(difference), "p": _p_value(difference)}
        )
        if kind != "whole set":
            floor = _by_normalization(chosen, "floor", kind, moment, settled)
            records[-1]["floor"] = {norm: mean(values) for norm, values in floor.items()}
    tested = [r for r in records if r["kind"] == "whole set" and r["p"] is not None]
    if tested:
        corrected = pruning.weight_tests.holm(jnp.array([r["p"] for r in tested]))
        for record, p in zip(tested, corrected, strict=True):
            record["holm"] = float(p)
    return records


def _by_normalization(
    runs: Runs, what: str, kind: str, moment: str, settled: int
) -> dict[str, np.ndarray]:
    """For each normalization and seed, the mean of a quantity over the epochs from `settled` on."""
    return {
        norm: np.array(
            [np.mean(run[what][kind][moment][settled:]) for run in select(runs, normalization=norm)]
        )
        for norm in NORMALIZATIONS
    }


def _p_value(difference: np.ndarray) -> float | None:
    """The two-sided p-value of Student's t test; None if there are fewer than two seeds."""
    if len(difference) < 2:
        return None
    found: Any = stats.ttest_1samp(difference, 0)
    return float(found.pvalue)


def sentences(results: dict) -> Iterator[str]:
    """Yield the findings of the page as sentences."""
    found = results["findings"]
    seeds = results["settings"]["seeds"]
    for group in found["accuracy"]:
        yield (
            f"The test accuracy of the network “{_group(group)}” is "
            f"{percent(group['accuracy'])} % after the last epoch."
        )
    for drop in select(found["drops"], kind="whole set"):
        yield (
            f"In the network “{_group(drop)}”, the exact distance between epochs in the {NEAR} "
            f"epochs from epoch {drop['epoch']} on is {_measured(drop['ratio'])} times the "
            f"distance in the {NEAR} epochs before."
        )
    for record in found["movement"]:
        if record["kind"] == "whole set":
            yield (
                f"The mean absolute change of {record['moment']} in an epoch after epoch "
                f"{found['settled']} is {_measured(record['batch_norm'])} with batch norm and "
                f"{_measured(record['unitized'])} with unitized batch norm, for the 8 units of "
                f"networks with “{record['order']}, {_schedule(record)}”. The mean difference "
                f"between networks of the same seed is {_measured(record['difference'])}"
                f"{_tested(record)}."
            )
    if seeds > 1:
        yield f"A number after ± is one standard error over {seeds} seeds."


def _group(record: dict) -> str:
    label = NORMALIZATIONS[record["normalization"]].label
    return f"{label}, {record['order']}, {_schedule(record)}"


def _schedule(record: dict) -> str:
    return "rate with drops" if record["schedule"] == "drops" else "constant rate"


def _measured(result: OverSeeds) -> str:
    return value_with_error(result["mean"], result["stderr"], digits=3)


def _tested(record: dict) -> str:
    if record["p"] is None:
        return " (one seed: no test)"
    return (
        f" (paired t test: p = {number(record['p'], 2)}, "
        f"after Holm's correction p = {number(record['holm'], 2)})"
    )


def render(results: dict) -> str:
    data = results["data"]
    return page.render(
        results,
        title=f"Moments and covariate shift through training on {data['name']}",
        about=data["name"],
        heading=f"Moments and covariate shift through training on {data['name']}",
        summary=_summary(results),
        sections=[
            ("shift", "Shift (Figure 3)", _shift(results)),
            ("rate", "Shift divided by learning rate", _rate(results)),
            ("moments", "Moments of eight units (Figure 2)", _moments(results)),
        ],
        made=page.provenance(results, results["settings"] | {"time": duration(results["seconds"])}),
    )


def _summary(results: dict) -> str:
    found, device = results["findings"], results["environment"]["device"]
    items = [
        (f"Drop before epoch {drop['epoch']}", f"× {_measured(drop['ratio'])}", _group(drop))
        for drop in select(found["drops"], kind="whole set", order=found["drops"][0]["order"])
        if drop["schedule"] == "drops"
    ]
    items.append(("Time", duration(results["seconds"]), f"{device}, since the last start"))
    return (
        paragraphs(*_done(results))
        + cards(items)
        + paragraphs(*_terms(results))
        + reference("Unitization")
    )


def _done(results: dict) -> Iterator[str]:
    """Yield what was trained and measured, and what the tests of moments found."""
    data, settings, drops = results["data"], results["settings"], results["findings"]["drops"]
    yield (
        "We trained the dense network of the unitization paper's Figure 2, which has ten layers of "
        f"100 units and one layer of 8 units, on {data['name']} with batch norm and with unitized "
        "batch norm. After every epoch, we measured the shift of the outputs of two layers and the "
        "moments of the last layer's outputs. The shift is the exact earth mover distance between "
        f"the outputs before and after the epoch. {unitized_defined()}"
    )
    ratios = [d["ratio"] for d in select(drops, kind="whole set", schedule="drops")]
    if ratios:
        low, high = (pick(ratios, key=lambda r: r["mean"]) for pick in (min, max))
        yield (
            "After a drop of the learning rate, the shift that the weights alone cause is between "
            f"{_measured(low)} and {_measured(high)} times the shift before the drop. The cards "
            f"show this factor for networks that normalize {PLACES[drops[0]['order']]} ReLU."
        )
    tested = [r for r in results["findings"]["movement"] if r.get("holm") is not None]
    if tested:
        signs = [r["difference"]["mean"] > 0 for r in tested if r["holm"] < LEVEL]
        yield (
            "We also compared the mean change of skewness or kurtosis in an epoch between the two "
            "normalizations. With unitized batch norm, the change is significantly larger in "
            f"{sum(signs)} of {len(tested)} comparisons and significantly smaller in "
            f"{len(signs) - sum(signs)} (paired t test over {settings['seeds']} seeds at the "
            f"{100 * LEVEL:.0f} % level, with Holm's correction for {len(tested)} tests)."
        )


def _terms(results: dict) -> Iterator[str]:
    """Yield the terms of the page, and how the run differs from the paper."""
    data, settings = results["data"], results["settings"]
    seeds = settings["seeds"]
    yield (
        "A network “norm first” normalizes before ReLU, and a network “ReLU first” normalizes "
        "after ReLU. “Rate with drops” means that the learning rate is divided "
        "at the epochs of the tables, and “constant rate” that it stays the same. A distance has "
        "the unit of the outputs, is between the joint outputs for "
        f"{min(settings['exact'], data['probe'])} test images, and is averaged over two layers."
        + f" A number after ± is one standard error over {seeds} seeds."
        * (seeds > 1)
    )
    yield (
        f"The run has {data['train']:,} training images, {settings['epochs']} epochs and {seeds} "
        "seeds. The paper's Figure 2 has 200 epochs on MNIST. Its Figure 3 has ResNet-110s on "
        "CIFAR, but here both figures have the network of Figure 2."
        + f" The data set has the note “{data['note']}”"
        * bool(data["note"])
    )


def _shift(results: dict) -> str:
    found = results["findings"]
    head = ["network", "drop before epoch", *(series.label for series in KINDS.values())]
    keys = dict.fromkeys((_group(drop), drop["epoch"]) for drop in found["drops"])
    rows = []
    for group, epoch in keys:
        by_kind = {
            d["kind"]: d for d in found["drops"] if (_group(d), d["epoch"]) == (group, epoch)
        }
        rows.append([group, str(epoch), *(_measured(by_kind[k]["ratio"]) for k in KINDS)])
    return (
        paragraphs(
            "The measured shift depends on the statistics that normalize the outputs. Statistics "
            "of the whole training set change only with the weights, so the weights alone cause "
            "the distance. Running averages also change with the last ten batches, and the "
            "statistics of a batch also change with its other images. For these two kinds of "
            "statistics, we also measured the distance with frozen weights. This distance comes "
            "from the change of the statistics alone, and a smaller shift cannot be seen."
        )
        + figure(
            _shift_panels(results),
            "Each line is the exact distance between epochs on a logarithmic scale, as the mean "
            "over two layers and all seeds" + _band(results) + " A dashed line is the distance "
            "with frozen weights. Dotted lines mark drops of the learning rate. Each panel has one "
            "network.",
            KINDS.values(),
            "two",
        )
        + table(head, rows, AT_DROPS)
        + table(*_floor_rows(found), FROZEN)
        + _bounds(results)
    )


def _bounds(results: dict) -> str:
    return figure(
        _bound_panels(results),
        "The line is the exact distance with statistics of the whole training set. The band "
        "reaches from a lower bound, which is the distance of the mean outputs, to an upper bound, "
        "which is the mean distance of the two outputs for the same image. The dashed line is the "
        "distance between two halves of the outputs after an epoch, which is above 0 without any "
        "shift because the halves are different samples. All values are means over two layers and "
        "all seeds.",
        NORMALIZATIONS.values(),
        "two",
    )


def _floor_rows(found: dict) -> tuple[list[str], list[list[str]]]:
    phases = dict.fromkeys(tuple(record["phase"]) for record in found["floor"])
    head = ["network", "statistics", *(f"epochs {first + 1} to {end}" for first, end in phases)]
    keys = dict.fromkeys((_group(r), r["kind"]) for r in found["floor"])
    rows = [
        [
            group,
            KINDS[kind].label,
            *(
                _measured(r["share"])
                for r in found["floor"]
                if (_group(r), r["kind"]) == (group, kind)
            ),
        ]
        for group, kind in keys
    ]
    return head, rows


def _rate(results: dict) -> str:
    found = results["findings"]["per_rate"]
    rates = results["learning_rate"]
    phases = dict.fromkeys(tuple(record["phase"]) for record in found)
    head = ["network", *(f"rate {number(rates[first], 2)}" for first, _ in phases)]
    rows = [
        [group, *(_measured(r["shift"]) for r in found if _group(r) == group)]
        for group in dict.fromkeys(map(_group, found))
    ]
    return paragraphs(
        "If the shift were proportional to the learning rate, the shift divided by the learning "
        "rate would be the same at every rate. We measured the shift in the second half of each "
        "period of constant rate, with statistics of the whole training set."
    ) + table(head, rows, "Exact distance between epochs, divided by the learning rate")


def _band(results: dict) -> str:
    seeds = results["settings"]["seeds"]
    return f"; the band is one standard error over {seeds} seeds." if seeds > 1 else "."


def _shift_panels(results: dict) -> list[str]:
    def paint(axes: Axes, runs: Runs) -> None:
        for kind, series in KINDS.items():
            values = np.array([distance(run, kind) for run in runs])
            curve(axes, np.arange(values.shape[1]) + 1, values, series)
            if kind != "whole set":
                floor = np.mean([distance(run, kind, "floor") for run in runs], 0)
                axes.plot(
                    np.arange(len(floor)) + 1, floor, color=series.colour, dashes=(4, 2), lw=1
                )
        plots.log_scale(axes)
        _mark(axes, results)

    return _panels_of(_groups(results["runs"]), paint, "shift")


def _bound_panels(results: dict) -> list[str]:
    def paint(axes: Axes, runs: Runs) -> None:
        low, high, base, exact = (
            np.mean([distance(run, "whole set", what) for run in runs], 0)
            for what in ("lower", "upper", "baseline", "exact")
        )
        epochs = np.arange(len(low)) + 1
        series = NORMALIZATIONS[runs[0]["normalization"]]
        axes.fill_between(epochs, low, high, color=series.colour, **plots.BAND)
        axes.plot(epochs, base, color=MUTED, dashes=(4, 2), lw=1.3)
        line(axes, epochs, exact, series)
        plots.log_scale(axes)
        _mark(axes, results)

    return _panels_of(_groups(select(results["runs"], schedule="drops")), paint, "bounds")


def _panels_of(
    groups: Sequence[tuple[dict[str, Any], Runs]], paint: Callable[[Axes, Runs], None], name: str
) -> list[str]:
    """A panel for each group of networks; the title names the group in a few words."""
    named = {
        f"{g['normalization'].replace('_', ' ')}, {g['order']}, {g['schedule']}": runs
        for g, runs in groups
    }
    return panels(
        lambda axes, title: paint(axes, named[title]),
        {title: title for title in named},
        name=name,
        xlabel="epoch",
        size=SMALL,
    )


def _moments(results: dict) -> str:
    found, order = results["findings"], results["runs"][0]["order"]
    labels = [series.label for series in NORMALIZATIONS.values()]
    head = ["moment", "network", "statistics", *labels]
    head += ["difference", "p", "p, Holm", *(f"{label}, frozen weights" for label in labels)]
    rows = [
        [
            MOMENTS[r["moment"]],
            f"{r['order']}, {_schedule(r)}",
            KINDS[r["kind"]].label,
            *(_measured(r[norm]) for norm in NORMALIZATIONS),
            _measured(r["difference"]),
            number(r["p"], 2),
            number(r.get("holm"), 2),
            *(_measured(r["floor"][norm]) if "floor" in r else "0" for norm in NORMALIZATIONS),
        ]
        for r in found["movement"]
    ]
    text = (
        "Each line is a moment of one of the eight units of the last normalization in the network "
        f"of the first seed ({order}), with statistics of the whole training set. The mean has the "
        "unit of the outputs, and the variance has the square of this unit. Skewness and kurtosis "
        "have no unit. Dotted lines mark drops of the learning rate."
    )
    caption = (
        "Mean absolute change of a moment in an epoch, over the eight units and all epochs after "
        f"epoch {results['findings']['settled']}. The difference is unitized batch norm minus "
        "batch norm, the value p is from a t test of the difference, paired by seed, and “p, Holm” "
        "has Holm's correction for all tests with statistics of the whole training set. The last "
        "two columns have the change with frozen weights."
    )
    return table(head, rows, caption) + figure(_moment_panels(results), text, UNITS, "two")


def _moment_panels(results: dict) -> list[str]:
    first = [run for run in results["runs"] if "moments" in run]
    runs = {
        run["normalization"]: run
        for run in select(first, order=first[0]["order"], schedule=first[0]["schedule"])
    }

    def paint(axes: Axes, shown: tuple[str, str]) -> None:
        name, norm = shown
        values = np.array(runs[norm]["moments"][name], float)
        for unit, series in zip(values, UNITS, strict=False):
            line(axes, np.arange(values.shape[1]) + 1, unit, series)
        both = np.array([run["moments"][name] for run in runs.values()], float)
        low, high = np.nanquantile(both, (0, 1))
        margin = 0.05 * (high - low + 1e-9)
        axes.set_ylim(low - margin, high + margin)
        _mark(axes, results)

    titles = {
        (name, norm): f"{label}, {series.label}"
        for name, label in MOMENTS.items()
        for norm, series in NORMALIZATIONS.items()
    }
    return panels(paint, titles, name="moments", xlabel="epoch", size=SMALL)


def _mark(axes: Axes, results: dict) -> None:
    drops = dict.fromkeys(drop["epoch"] for drop in results["findings"]["drops"])
    mark_drops(axes, results["learning_rate"], list(drops))
