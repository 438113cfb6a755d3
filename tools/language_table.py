"""The table of pruned language models in docs/language_models.md, for `tools.tables`."""

from collections.abc import Iterator
from typing import Any

PLAIN = {"none": "no repair", "least squares": "repaired"}


def lines(results: dict[str, Any]) -> Iterator[str]:
    """Yield a table with a row for each remaining share and score, and a column for each repair."""
    repairs = list(dict.fromkeys(row["repair"] for row in results["rows"]))
    yield "| remaining parameters | score | " + " | ".join(map(heading, repairs)) + " |"
    yield "| --- " * (2 + len(repairs)) + "|"
    cells = {(row["keep"], row["score"], row["repair"]): row for row in results["rows"]}
    for keep, score in dict.fromkeys((row["keep"], row["score"]) for row in results["rows"]):
        found = [cells.get((keep, score, repair)) for repair in repairs]
        yield f"| {keep:.0%} | `{score}` | {' | '.join(map(cell, found))} |".replace("%", " %")


def heading(repair: str) -> str:
    """The heading of a column, which says how the kernels are repaired."""
    if repair in PLAIN:
        return PLAIN[repair]
    *before, training = repair.split(", ")
    on = "on " if "epoch" in training else ""
    trained = f"trained {on}{training}".replace("%", " %")
    return ", then ".join([*(PLAIN[part] for part in before), trained])


def cell(row: dict[str, Any] | None) -> str:
    """The mean perplexity, with its standard error if the random draws gave different values."""
    if row is None:
        return ""
    error = row["stderr"]
    return f"{row['mean']:.2f}" + (f" ± {error:.2f}" if error else "")
