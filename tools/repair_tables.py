"""The tables of repaired networks, for `tools.tables`."""

from collections.abc import Iterator

from experiments.measures.repair import (
    CONTROL,
    Cells,
    Table,
    margin,
    mean_of,
    p_value,
    ratios,
    repairs,
    values_of_criteria,
)
from experiments.pages.repair import percent, probability

LABELS = {
    "folded": "`fold_constants`",
    "recalibrated": "`recalibrate`",
    "merged, transport": "`merge_channels` with `transport`, no data",
    "merged, clusters": "`merge_channels` with `clusters`, no data",
    "merged, clusters, recalibrated": "`merge_channels` with `clusters`, `recalibrate`",
    "scaled": "`rescale`",
    "least squares": "`least_squares`",
    "least squares, recalibrated": "`least_squares`, `recalibrate`",
    "greedy, recalibrated": "`reconstruction_scores`, `recalibrate`",
    "greedy, least squares": "`reconstruction_scores`, `least_squares`",
    "fine-tuned, one epoch": "`recalibrate`, one epoch of training",
}
CONTROLS = ("recalibrated", "least squares", "fine-tuned, one epoch")


def lines(table: Table, network: str) -> Iterator[str]:
    """Yield a row for each repair, and for some repairs also a row for randomly removed channels.

    For each share of removed channels, the row has the accuracy, the margin within which the
    criteria agree, and the p-value of Friedman's test.
    """
    removed = ratios(table, network)
    yield "| repair |" + "".join(f" {100 * ratio:.0f} % removed | margin, p |" for ratio in removed)
    yield "| --- |" + " --- | --- |" * len(removed)
    for repair in sorted(repairs(table, network), key=list(LABELS).index):
        row = [table.get((network, ratio, repair)) for ratio in removed]
        cells = [f"{accuracy(cell)} | {tests(cell)}" for cell in row]
        yield f"| {LABELS[repair]} | {' | '.join(cells)} |"
        if repair in CONTROLS and any(cell is not None and CONTROL in cell for cell in row):
            at_random = [
                {CONTROL: cell[CONTROL]} if cell and CONTROL in cell else None for cell in row
            ]
            cells = [f"{accuracy(cell)} |" for cell in at_random]
            yield f"| random channels, {LABELS[repair]} | {' | '.join(cells)} |"


def accuracy(cells: Cells | None) -> str:
    """The mean accuracy over criteria, or over random choices if `cells` has no criteria."""
    if cells is None:
        return ""
    return percent(
        mean_of(cells[CONTROL] if list(cells) == [CONTROL] else values_of_criteria(cells).mean(0))
    )


def tests(cells: Cells | None) -> str:
    p, limit = (None, None) if cells is None else (p_value(cells), margin(cells))
    return "" if p is None or limit is None else f"{100 * limit:.1f}, {probability(p)}"
