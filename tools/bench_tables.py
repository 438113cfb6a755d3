"""The tables of the benchmarks in docs/results/bench, for `tools.tables`."""

import re
from collections.abc import Iterator
from typing import Any

IDEAL = re.compile(r"ideal (\d\.\d+)")
LAYER = re.compile(r"(\w*BatchNorm(?:\(bounded\))?) (.*) / flax")
TIMES = (
    "Each row compares two programs, “first / second”. Where the title of a table names the second "
    "program, a row names only the first. We called the two programs alternately, "
    "at most {runs} times each. The times are medians. A ratio is the time of the first program "
    "divided by the time of the second; the table shows the median ratio of neighboring calls, "
    "with quartiles in parentheses."
)


def tables(found: dict[str, Any], subject: str, titles: str) -> str:
    """The tables of the groups whose titles begin with `titles`, and a text about the measurement.

    All groups of layers share one table; every other group has its own table.
    """
    groups = {title: rows for title, rows in found["groups"].items() if title.startswith(titles)}
    if all(LAYER.fullmatch(row["name"]) for rows in groups.values() for row in rows):
        parts = [machine(found, subject), "\n".join(layers(groups))]
    else:
        parts = [f"{TIMES.format(**found['options'])}\n{machine(found, subject)}"]
        parts += (f"{heading(name)}\n\n" + "\n".join(pairs(rows)) for name, rows in groups.items())
    return "\n\n".join(parts) + "\n\n"


def machine(found: dict[str, Any], subject: str) -> str:
    """The machine and the date of a file of results, and a link to the file."""
    machine, options = found["environment"], found["options"]
    place = f"{machine['cores']} CPU cores"
    if machine["device"] != "cpu":
        place = f"{machine['device']}, in a host with {place}"
    return (
        f"Machine: {place}, {options['dtype']}, JAX "
        f"{machine['jax']}, {found['date'][:10]} ([results](results/bench/{subject}.json))."
    )


def heading(title: str) -> str:
    """The title of a group in bold type."""
    return f"**{title[0].upper()}{title[1:]}**"


def pairs(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each compared pair; pruned networks also show the share of the ideal speed-up."""
    ideals = [IDEAL.search(row["name"]) for row in rows]
    shares = all(ideals)
    share = " share of the ideal speed-up |" if shares else ""
    yield f"| program | time, ms | time of the second, ms | ratio |{share}"
    yield f"| --- | ---: | ---: | ---: |{' ---: |' * shares}"
    for row, ideal in zip(rows, ideals, strict=True):
        ours, peer = (_milliseconds(row[f"{side}_ms"]) for side in ("ours", "peer"))
        share = f" {100 * float(ideal[1]) / row['ratio']:.0f} % |" if shares and ideal else ""
        yield f"| {row['name']} | {ours} | {peer} | {ratio(row)} |{share}"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def layers(groups: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A table of each layer's time and memory, divided by the time and memory of Flax's layer.

    Each group has a row with its title, and then a row for each input shape.
    """
    names = list(dict.fromkeys(_layer(row)[0] for rows in groups.values() for row in rows))
    yield f"| input | {' | '.join(names)} | memory |"
    yield f"| --- |{' ---: |' * (len(names) + 1)}"
    for title, rows in groups.items():
        yield f"| {heading(title)} |{' |' * (len(names) + 1)}"
        table: dict[str, dict[str, dict[str, Any]]] = {}
        for row in rows:
            layer, shape = _layer(row)
            table.setdefault(shape, {})[layer] = row
        for shape, by_layer in table.items():
            cells = [ratio(by_layer[name]) for name in names]
            memory = ", ".join(f"{by_layer[name]['memory']:.2f}" for name in names)
            yield f"| {shape} | {' | '.join(cells)} | {memory} |"


def _layer(row: dict[str, Any]) -> tuple[str, str]:
    """The layer's name and the input shape, read from the name of a table row."""
    layer, shape = LAYER.fullmatch(row["name"]).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return layer, shape


def ratio(row: dict[str, Any]) -> str:
    """The cell of a row with the ratio of times and its quartiles."""
    middle, low, high = map(_share, (row["ratio"], *row["quartiles"]))
    return f"{middle} ({low} to {high})"


def _share(value: float) -> str:
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"
