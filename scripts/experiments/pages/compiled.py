"""Make the page of `scripts/bench_compiled.py`."""

from typing import Any

from experiments.benchmarks.host_functions import HOST_ONLY
from experiments.compiled.functions import qualified_name
from experiments.compiled.tables import LIMITS, TABLES, Row
from experiments.pages import page

DEVICES = {"v5e": "TPU v5e", "h100": "NVIDIA H100"}


COLUMNS = (
    "In the tables of layers, traffic, floor and temporary memory are multiples of n, the bytes of "
    "the layer's input. The floor is the smallest traffic if no array stays in a cache or in "
    "vector memory. The column “of Flax” shows the traffic divided by the traffic of Flax's batch "
    "norm. The column “temporary beyond Flax” shows how much more temporary memory the layer needs "
    "than Flax's batch norm. Numbers in parentheses are the limits that we set, and the column "
    "“target” says whether the layer keeps its limits."
)


def render(results: dict[str, Any]) -> str:
    sections = [
        (f"{target}-{name}", f"{DEVICES[target]}: {TABLES[name].title}", rows_table(name, rows))
        for target, tables in results["targets"].items()
        for name, rows in tables.items()
    ]
    entries = results["plugins"] | {"minutes": f"{results['seconds'] / 60:.0f}"}
    return page.render(
        results,
        title="Compiled programs",
        about="programs compiled ahead of time",
        heading="What our programs read and write on a TPU v5e and an H100",
        summary=page.cards(verdicts(results)) + page.paragraphs(*LIMITS, COLUMNS),
        sections=[*sections, ("host", "On the host only", host_table())],
        made=page.provenance(results, entries),
    )


def verdicts(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """For each chip, how many layers keep their limits, and how many functions were compiled."""
    cards = []
    for target, tables in results["targets"].items():
        held = [
            row["holds"] for rows in tables.values() for row in rows if row.get("holds") is not None
        ]
        compiled = [row for row in tables.get("functions", []) if "error" not in row]
        cards.append(
            (DEVICES[target], f"{sum(held)} of {len(held)}", "programs are within their limits")
        )
        cards.append(
            (
                DEVICES[target],
                f"{len(compiled)} of {len(tables.get('functions', []))}",
                "public functions compile",
            )
        )
    return cards


def rows_table(name: str, rows: list[Row]) -> str:
    table = TABLES[name]
    cells = [table.cells(row) for row in rows]
    kind = "words" if name == "functions" else "narrow"
    return page.table(list(table.columns), cells, table.title, kind=kind)


def host_table() -> str:
    rows = [
        (reason, ", ".join(qualified_name(function) for function in functions))
        for reason, functions in HOST_ONLY.items()
    ]
    return page.table(
        ("why", "functions"), rows, "Public functions that run only on the host", kind="words"
    )
