"""The tables of `scripts/bench_compiled.py`: rows for one target, and their cells as text."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import SingleDeviceSharding

from experiments.compiled.block import block_rows
from experiments.compiled.compile_only import compile_only_devices
from experiments.compiled.functions import function_rows
from experiments.compiled.layers import DTYPES, SHAPES, collective_rows, layer_rows

TARGETS = {"v5e": "v5e:2x2", "h100": "h100:4"}
LIMITS = (
    "All numbers are read from compiled programs. No program was run, so there are no times.",
    "Traffic is the number of bytes that kernels read from HBM and write to HBM. Caches are not "
    "modelled, although an H100 has a cache of 50 MB. The tables show the number of kernels, "
    "because every kernel takes some time to start.",
    "Arrays that fit into the 128 MB of a TPU's vector memory stay there, so the traffic of small "
    "arrays can be below the floor.",
    "A sort or a scatter counts as one pass over its data, although it makes several passes. A "
    "loop whose number of iterations is unknown counts once, and is marked by 'while x?'.",
)

Row = dict[str, Any]


class Table(NamedTuple):
    title: str
    columns: dict[str, Callable[[Row], str]]

    def cells(self, row: Row) -> list[str]:
        """The cells of a row as text; if the program was not compiled, a cell gives the reason."""
        others = (len(self.columns) - 1) * [""]
        if "skipped" in row:
            return [f"not compiled: {row['skipped']}", *others]
        if "error" in row:
            return [row["function"], row["size"], *others[2:], row["error"]]
        return [write(row) for write in self.columns.values()]


def rows(
    target: str,
    table: str,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtypes: Sequence[str] = DTYPES,
) -> Iterator[Row]:
    """The rows of one of the tables in `TABLES`.

    A row's program is compiled for `target` only when the iterator reaches the row.
    """
    devices = compile_only_devices(TARGETS[target])
    sharding = SingleDeviceSharding(devices[0])
    if table == "layers":
        return layer_rows(target, sharding, shapes, dtypes)
    if table == "collectives":
        return collective_rows(devices)
    if table == "functions":
        return function_rows(sharding)
    if target == "h100":
        return iter([{"skipped": "convolutions on a GPU are tuned on the device"}])
    return block_rows(sharding)


def shape(row: Row) -> str:
    return "×".join(map(str, row["shape"]))


def bounded(name: str, limit: str) -> Callable[[Row], str]:
    """A function that writes a row's number with two decimals, and its limit if there is one."""

    def write(row: Row) -> str:
        at_most = row["limits"][limit]
        return f"{row[name]:z.2f}" if at_most is None else f"{row[name]:z.2f} (≤ {at_most:.2f})"

    return write


def verdict(row: Row) -> str:
    return {True: "holds", False: "fails", None: ""}[row["holds"]]


def collectives(row: Row) -> str:
    counts = Counter(collective["op"] for collective in row["collectives"])
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def notable(row: Row) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(row["notable"].items()))


COMPARED = {
    "of Flax": bounded("ratio_to_flax", "traffic"),
    "temporary beyond Flax, n": bounded("temporary", "temporary"),
    "target": verdict,
    "kernels": "{kernels}".format_map,
}
TABLES = {
    "layers": Table(
        "Layers beside Flax's batch norm",
        {
            "layer": "{layer}".format_map,
            "shape": shape,
            "dtype": "{dtype}".format_map,
            "mode": "{mode}".format_map,
            "traffic, n": "{traffic:.2f}".format_map,
            "floor, n": "{floor}".format_map,
            **COMPARED,
            "compiled in, s": "{seconds:.1f}".format_map,
        },
    ),
    "bottleneck": Table(
        "A training step of the inner bottleneck of a ResNet-50, (256, 56, 56, 256), bfloat16",
        {
            "layer": "{layer}".format_map,
            "traffic, MB": "{megabytes:.0f}".format_map,
            **COMPARED,
            "compiled in, s": "{seconds:.0f}".format_map,
        },
    ),
    "collectives": Table(
        "Collectives of a layer's forward pass in training, bfloat16, the batch sharded",
        {
            "layer": "{layer}".format_map,
            "shape": shape,
            "devices": "{devices}".format_map,
            "collectives": collectives,
            "bytes": lambda row: f"{sum(c['bytes'] for c in row['collectives']):.0f}",
            "as few as Flax": lambda row: "yes" if row["as_few_as_flax"] else "no",
        },
    ),
    "functions": Table(
        "Public functions, float32",
        {
            "function": "{function}".format_map,
            "size": "{size}".format_map,
            "traffic, MB": "{megabytes:.3g}".format_map,
            "over arguments and results": "{ratio_to_arguments_and_results:.1f}".format_map,
            "kernels": "{kernels}".format_map,
            "notable operations": notable,
        },
    ),
}
