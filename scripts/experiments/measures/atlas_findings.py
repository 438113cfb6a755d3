"""Correlate the shift of networks from `scripts/atlas.py` with their training results.

In this module, a comparison consists of the eight networks with the same task and seed. These
networks start from the same weights and see the same batches. In each comparison, the mean over the
eight networks is subtracted from the logarithms of shifts and losses, so that tasks and seeds cause
no correlation.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

DRAWS = 2000  # The number of times that the bootstrap draws groups.
LEVEL = 0.95  # The confidence level of the interval of a correlation.

Runs = Sequence[Mapping[str, Any]]


def shift_of(run: Mapping[str, Any], what: str) -> float:
    """The geometric mean, over layers and epochs, of the distance by which a layer's outputs shift.

    `what` selects the distance, such as the shift in one epoch or in one step. Each distance is
    divided by the square root of the sum of the outputs' variances.
    """
    relative = [
        layer[what] / layer["spread"]
        for epoch in run["epochs"]
        for layer in epoch["layers"].values()
    ]
    return float(np.exp(np.mean(np.log(relative))))


SHIFTS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "of an epoch": lambda run: shift_of(run, "epoch"),
    "of a step": lambda run: shift_of(run, "step"),
}
OUTCOMES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "test loss at the end": lambda run: run["epochs"][-1]["test_loss"],
    "mean training loss of the first epoch": lambda run: float(np.mean(run["epochs"][0]["loss"])),
}


def findings(runs: Runs) -> dict[str, Any]:
    """A row for each normalizer on each task, and correlations between shifts and outcomes."""
    whole = comparisons(runs)
    return {
        "comparisons": len(whole),
        "rows": rows(runs),
        "correlations": [
            {"shift": shift, "outcome": outcome, **correlation(whole, s, o)}
            for shift, s in SHIFTS.items()
            for outcome, o in OUTCOMES.items()
        ]
        if whole
        else [],
    }


def comparisons(runs: Runs) -> list[list[Mapping[str, Any]]]:
    """The runs of each task and seed, sorted by normalizer, if all normalizers have a run."""
    found = defaultdict(dict)
    for run in runs:
        found[run["task"], run["seed"]][run["normalizer"]] = run
    names = sorted({run["normalizer"] for run in runs})
    return [[own[n] for n in names] for own in found.values() if set(own) == set(names)]


def correlation(
    whole: Sequence[Sequence[Mapping[str, Any]]],
    shift: Callable[[Mapping[str, Any]], float],
    outcome: Callable[[Mapping[str, Any]], float],
) -> dict[str, Any]:
    """Pearson's correlations of log shift with log outcome, between and within normalizers.

    Each correlation has a bootstrap interval. For the correlation between normalizers, the mean of
    each comparison is subtracted, and the bootstrap resamples normalizers. For the correlation
    within normalizers, the mean of each normalizer on a task is also subtracted, and the bootstrap
    resamples pairs of a normalizer and a task. The correlation within normalizers is None if every
    task has only one seed.
    """
    x, y = (
        np.log([[measure(run) for run in runs] for runs in whole]) for measure in (shift, outcome)
    )
    x, y = (a - a.mean(1, keepdims=True) for a in (x, y))
    tasks = np.array([runs[0]["task"] for runs in whole])
    found: dict[str, Any] = {"between": interval(x.T, y.T)}
    several = [task for task in np.unique(tasks) if (tasks == task).sum() > 1]
    if several:
        left = (
            np.concatenate([_about_mean(a[tasks == task]).T for task in several]) for a in (x, y)
        )
        found["within"] = interval(*left)
    else:
        found["within"] = None
    return found


def _about_mean(a: Float[np.ndarray, "s n"]) -> Float[np.ndarray, "s n"]:
    return a - a.mean(0)


def interval(
    x: Float[np.ndarray, "groups n"], y: Float[np.ndarray, "groups n"]
) -> dict[str, float]:
    """The correlation of x and y, and a bootstrap interval; the bootstrap resamples rows."""
    rng = np.random.default_rng(0)
    # If a draw has the same row in all places, x or y can be constant. The draw then has the
    # correlation NaN and is left out.
    with np.errstate(invalid="ignore"):
        drawn = [
            np.corrcoef(x[rows].ravel(), y[rows].ravel())[0, 1]
            for rows in rng.integers(0, len(x), (DRAWS, len(x)))
        ]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    found = np.corrcoef(x.ravel(), y.ravel())[0, 1]
    return {"correlation": float(found), "low": float(low), "high": float(high), "groups": len(x)}


def rows(runs: Runs) -> list[dict[str, Any]]:
    """For each normalizer and task, every measure's mean over seeds, with its standard error."""
    groups = defaultdict(list)
    for run in runs:
        groups[run["task"], run["normalizer"]].append(run)
    return [
        {
            "task": task,
            "normalizer": normalizer,
            "seeds": len(own),
            **{name: _mean(own, measure) for name, measure in _MEASURES.items()},
        }
        for (task, normalizer), own in groups.items()
    ]


def _last_layer(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return list(run["epochs"][-1]["layers"].values())[-1]


def _over_distance(what: str) -> Callable[[Mapping[str, Any]], float]:
    def ratio(run: Mapping[str, Any]) -> float:
        layer = _last_layer(run)
        return np.nan if layer[what] is None else float(layer[what]) / float(layer["epoch"])

    return ratio


_MEASURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "accuracy": lambda run: run["epochs"][-1]["accuracy"],
    "test_loss": OUTCOMES["test loss at the end"],
    "first_epoch_loss": OUTCOMES["mean training loss of the first epoch"],
    "epoch_shift": SHIFTS["of an epoch"],
    "step_shift": SHIFTS["of a step"],
    "floor": lambda run: float(_last_layer(run)["floor"]) / float(_last_layer(run)["spread"]),
    "moment_bound": _over_distance("moment_bound"),
    "certificate": _over_distance("certificate"),
}


def _mean(runs: Runs, measure: Callable[[Mapping[str, Any]], float]) -> dict[str, float | None]:
    values = np.array([measure(run) for run in runs])
    if np.isnan(values).any():
        return {"mean": None, "stderr": None}
    stderr = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": float(values.mean()), "stderr": None if stderr is None else float(stderr)}
