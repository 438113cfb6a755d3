"""Compute accuracies of repaired networks, standard errors, and whether criteria differ.

The results for one network, ratio, repair and criterion are an array (draws, blocks). A draw is a
sample of images for the repair. A block is a network or a test image. The result for a network is
its accuracy. The result for a test image is 1 if the network classifies the image correctly, and
otherwise 0. All draws have the same blocks.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from experiments.measures.pruned import friedman

CONTROL = "random"
Key = tuple[str, float, str]
"""A name of a network, the ratio of its channels that are removed, and a repair."""
Cells = dict[str, np.ndarray]
"""Results by criterion; "none" stands for choices that use no criterion."""
Table = dict[Key, Cells]


class Mean(NamedTuple):
    """A mean, its standard error and the degrees of freedom of the standard error."""

    mean: float
    stderr: float
    dof: float


def pack(found: np.ndarray) -> str:
    """Boolean values of images as hexadecimal text; each digit has the values of four images."""
    return np.packbits(found).tobytes().hex()


def unpack(text: str, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count)


def of_networks(run: dict[str, Any]) -> Table:
    """The table of the results in digits.json, in which each block is a network."""
    found: dict[Any, list[float]] = {}
    for row in run["rows"]:
        key = row["network"], row["ratio"], row["repair"], row["criterion"]
        found.setdefault(key, []).append(row["accuracy"])
    return _by_criterion((key, np.array([values])) for key, values in found.items())


def of_images(run: dict[str, Any]) -> Table:
    """The table of the results in resnet20.json, in which each block is a test image."""
    found: dict[Any, list[np.ndarray]] = {}
    for row in sorted(run["rows"], key=lambda row: row["draw"]):
        key = "ResNet-20", row["ratio"], row["repair"], row["criterion"]
        found.setdefault(key, []).append(unpack(row["correct"], run["settings"]["test"]))
    return _by_criterion((key, np.array(values, float)) for key, values in found.items())


def _by_criterion(cells: Iterable[tuple[Any, np.ndarray]]) -> Table:
    table: Table = {}
    for (*key, criterion), values in cells:
        table.setdefault(tuple(key), {})[criterion] = values
    return table


def values_of_criteria(cells: Cells) -> np.ndarray:
    """The results for all criteria except the control, of shape (criteria, draws, blocks)."""
    values = [v for name, v in cells.items() if name != CONTROL]
    draws = min(len(v) for v in values)  # in an unfinished run, some criteria have fewer draws
    return np.stack([v[:draws] for v in values])


def mean_of(values: np.ndarray) -> Mean:
    """The mean over draws and blocks, and the standard error of the mean.

    The variance is estimated as s²(means over draws) / blocks + s²(means over blocks) / draws. On
    average, the estimate is at least the variance of the mean, because both terms include the noise
    of single results. The degrees of freedom are computed by the formula of Welch and
    Satterthwaite. With one draw, the standard error is over blocks only.
    """
    parts = [
        (means.var(ddof=1) / means.size, means.size - 1)
        for means in (values.mean(0), values.mean(1))
        if means.size > 1
    ]
    variance = sum(part for part, _ in parts)
    weights = sum(part**2 / dof for part, dof in parts)
    dof = variance**2 / weights if weights > 0 else min((d for _, d in parts), default=np.nan)
    return Mean(float(values.mean()), float(variance**0.5) if parts else np.nan, float(dof))


def p_value(cells: Cells) -> float | None:
    """The p-value of Friedman's test of the hypothesis that criteria do not differ.

    For each block (a network or a test image), the test uses the mean over draws.
    """
    values = values_of_criteria(cells)
    return friedman(values.mean(1).T)["p"] if len(values) > 2 else None


def margin(cells: Cells) -> float | None:
    """The smallest margin within which all pairs of criteria are equivalent.

    Two criteria are equivalent within a margin if two one-sided t tests at 5 % show that the mean
    of their paired differences lies within ± the margin.
    """
    pairs = list(itertools.combinations(values_of_criteria(cells), 2))
    if not pairs or not all(np.isfinite(mean_of(a - b).stderr) for a, b in pairs):
        return None
    return max(_limit(mean_of(a - b)) for a, b in pairs)


def _limit(difference: Mean) -> float:
    t = scipy.stats.t.ppf(0.95, difference.dof) if difference.stderr > 0 else 0.0
    return abs(difference.mean) + float(t) * difference.stderr


def ratios(table: Table, network: str) -> list[float]:
    return sorted({ratio for name, ratio, _ in table if name == network})


def repairs(table: Table, network: str) -> Iterator[str]:
    """The names of a network's repairs, in the order in which the repairs were measured."""
    return iter(dict.fromkeys(repair for name, _, repair in table if name == network))
