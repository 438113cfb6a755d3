"""The table of cut language models in docs/language_models.md: `tools.tables` writes it."""

from collections.abc import Iterator
from typing import Any

REPAIRS = {
    "none": "cut",
    "least squares": "and solved",
    "fine-tuned": "and trained",
    "least squares, fine-tuned": "solved and trained",
}


def lines(results: dict[str, Any]) -> Iterator[str]:
    """A row a share and score, a column a repair; the head names the steps of training."""
    steps = results["settings"]["steps"]
    heads = [label.replace("trained", f"trained {steps} steps") for label in REPAIRS.values()]
    yield "| parameters that remain | score | " + " | ".join(heads) + " |"
    yield "| --- " * (2 + len(REPAIRS)) + "|"
    cells = {(row["keep"], row["score"], row["repair"]): row for row in results["rows"]}
    for keep, score in dict.fromkeys((row["keep"], row["score"]) for row in results["rows"]):
        found = [cells.get((keep, score, repair)) for repair in REPAIRS]
        yield f"| {keep:.0%} | `{score}` | {' | '.join(map(cell, found))} |".replace("%", " %")


def cell(row: dict[str, Any] | None) -> str:
    """A mean with its standard error over draws, where they vary it."""
    if row is None:
        return ""
    error = row["stderr"]
    return f"{row['mean']:.2f}" + (f" ± {error:.2f}" if error else "")
