"""The table of a network's accuracies by normalization in docs/training.md, for `tools.tables`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95  # the confidence level of all intervals together, by Bonferroni's correction
NAMES = {
    "batch_norm": "batch norm",
    "unitized": "unitized",
    "bounded": "unitized by Eq. 9, alpha in [0, 1]",
}


def lines(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a table row for each normalization, with accuracies and the difference from batch norm.

    Args:
      results: For each normalization, the contents of its results.json. All normalizations must
        have the same seeds.
    """
    found = {name: [100 * run[-1]["accuracy"] for run in r["seeds"]] for name, r in results.items()}
    seeds = len(found["batch_norm"])
    header = "difference from batch norm, percentage points (interval)"
    yield f"| layer | test accuracy of each seed, % | mean | {header} |"
    yield "| --- | --- | ---: | ---: |"
    for name, values in found.items():
        cells = [NAMES[name], ", ".join(f"{v:.2f}" for v in values), f"{sum(values) / seeds:.2f}"]
        yield f"| {' | '.join(cells)} | {difference(values, found, name)} |"


def difference(values: list[float], found: Mapping[str, list[float]], name: str) -> str:
    """The mean difference from batch norm at equal seeds, its standard error and a t interval."""
    if name == "batch_norm":
        return ""
    level = 1 - (1 - LEVEL) / (len(found) - 1)
    test = stats.ttest_rel(values, found["batch_norm"])
    low, high = test.confidence_interval(level)
    differences = np.subtract(values, found["batch_norm"])
    stderr = stats.sem(differences)
    text = f"{differences.mean():+.2f} ± {stderr:.2f} ({low:+.2f} to {high:+.2f})"
    return text.replace("-", "−")
