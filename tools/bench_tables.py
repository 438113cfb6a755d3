"""The tables of the benchmarks in docs/results/bench, for `tools.tables`."""

import re
from collections.abc import Iterator
from typing import Any

IDEAL = re.compile(r"ideal (\d\.\d+)")
LAYER = re.compile(r"(\w*BatchNorm(?:\(bounded\))?) (.*) / flax")


def tables(found: dict[str, Any], subject: str, titles: str) -> str:
    """How a file was measured, and a table for each group whose title begins with `titles`."""
    parts = [provenance(found, subject)]
    for title, rows in found["groups"].items():
        if title.startswith(titles):
            by_layer = all(LAYER.fullmatch(row["name"]) for row in rows)
            lines = layers(rows) if by_layer else pairs(rows)
            parts.append(f"**{title[0].upper()}{title[1:]}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n\n"


def provenance(found: dict[str, Any], subject: str) -> str:
    """Sentences that explain the numbers of a file of results and name the machine."""
    machine, options = found["environment"], found["options"]
    return (
        f"Times are medians of at most {options['runs']} calls. A ratio is our time divided by the "
        "time of the compared program. The tables show the median ratio over pairs of neighbouring "
        "calls, with quartiles.\n"
        f"Machine: {machine['cores']} cores ({machine['device']}), {options['dtype']}, JAX "
        f"{machine['jax']}, {found['date'][:10]} ([results](results/bench/{subject}.json))."
    )


def pairs(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each comparison; for pruned networks, with the share of the ideal speed-up."""
    ideals = [IDEAL.search(row["name"]) for row in rows]
    shares = all(ideals)
    share = " share of the ideal speed-up |" if shares else ""
    yield f"| compared programs | our time, ms | other time, ms | ratio |{share}"
    yield f"| --- | ---: | ---: | ---: |{' ---: |' * shares}"
    for row, ideal in zip(rows, ideals, strict=True):
        ours, peer = (_milliseconds(row[f"{side}_ms"]) for side in ("ours", "peer"))
        share = f" {100 * float(ideal[1]) / row['ratio']:.0f} % |" if shares and ideal else ""
        yield f"| {row['name']} | {ours} | {peer} | {ratio(row)} |{share}"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def layers(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each input shape, with ratios of each layer's time and memory to those of Flax."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        layer, shape = LAYER.fullmatch(row["name"]).groups()  # pyright: ignore[reportOptionalMemberAccess]
        table.setdefault(shape, {})[layer] = row
    names = list(next(iter(table.values())))
    yield f"| input | {' | '.join(names)} | memory of our three layers / Flax |"
    yield f"| --- |{' ---: |' * (len(names) + 1)}"
    for shape, by_layer in table.items():
        cells = [ratio(by_layer[name]) for name in names]
        memory = ", ".join(f"{by_layer[name]['memory']:.2f}" for name in names)
        yield f"| {shape} | {' | '.join(cells)} | {memory} |"


def ratio(row: dict[str, Any]) -> str:
    """The ratio and its quartiles."""
    low, high = row["quartiles"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"
