"""The tables of `scripts/bench_compiled.py` for one target: rows, and their cells as text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import SingleDeviceSharding

from experiments.benchmarks.compile_only import compile_only_devices
from experiments.benchmarks.compiled_block import block_rows
from experiments.benchmarks.compiled_functions import function_rows
from experiments.benchmarks.compiled_layers import DTYPES, SHAPES, collective_rows, layer_rows

TARGETS = {"v5e": "v5e:2x2", "h100": "h100:4"}
LIMITS = (
    "Read from compiled programs, nothing was run: no times.",
    "Traffic is what kernels read and write in HBM; no cache is modelled (an H100 has 50 MB).",
    "The cost of launching kernels is not in it: see their count.",
    "Arrays that fit the 128 MB of a TPU's vector memory remain there, so that small shapes look "
    "free: below the floor.",
    "A sort or a scatter counts one pass over its data, though it makes several.",
    "A loop whose trips XLA does not know counts once: 'while x?'.",
)

Row = dict[str, Any]


class Table(NamedTuple):
    title: str
    head: tuple[str, ...]
    cells: Callable[[Row], tuple[str, ...]]


def rows(
    target: str,
    table: str,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtypes: Sequence[str] = DTYPES,
) -> Iterator[Row]:
    """Rows of a table of `TABLES`, compiled for `target` as they are taken."""
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


def layer_cells(row: Row) -> tuple[str, ...]:
    return (
        row["layer"],
        "×".join(map(str, row["shape"])),
        row["dtype"],
        row["mode"],
        f"{row['traffic']:.2f}",
        f"{row['floor']}",
        *compared(row),
        f"{row['kernels']}",
        f"{row['seconds']:.1f}",
    )


def block_cells(row: Row) -> tuple[str, ...]:
    if "skipped" in row:
        return (f"not compiled: {row['skipped']}", *6 * ("",))
    return (
        row["layer"],
        f"{row['megabytes']:.0f}",
        *compared(row),
        f"{row['kernels']}",
        f"{row['seconds']:.0f}",
    )


def compared(row: Row) -> tuple[str, str, str]:
    """Traffic over Flax's, temporary memory beyond Flax's, each with its limit, and the verdict."""
    traffic, temporary = row["limits"].values()
    verdict = {True: "holds", False: "fails", None: ""}[row["holds"]]
    return bounded(row["ratio_to_flax"], traffic), bounded(row["temporary"], temporary), verdict


def bounded(value: float, limit: float | None) -> str:
    return f"{value:z.2f}" if limit is None else f"{value:z.2f} (≤ {limit:.2f})"


def collective_cells(row: Row) -> tuple[str, ...]:
    collectives = row["collectives"]
    names = sorted({c["op"] for c in collectives})
    total = sum(c["bytes"] for c in collectives)
    return (
        row["layer"],
        "×".join(map(str, row["shape"])),
        f"{row['devices']}",
        ", ".join(f"{sum(c['op'] == name for c in collectives)} {name}" for name in names),
        f"{total:.0f}",
        "yes" if row["as_few_as_flax"] else "no",
    )


def function_cells(row: Row) -> tuple[str, ...]:
    if "error" in row:
        return (row["function"], row["size"], "", "", "", row["error"])
    notable = ", ".join(f"{count} {name}" for name, count in sorted(row["notable"].items()))
    return (
        row["function"],
        row["size"],
        f"{row['megabytes']:.3g}",
        f"{row['ratio_to_arguments_and_results']:.1f}",
        f"{row['kernels']}",
        notable,
    )


COMPARED = ("of Flax", "temporary beyond Flax, n", "target")
TABLES = {
    "layers": Table(
        "Layers beside Flax's batch norm",
        (
            "layer",
            "shape",
            "dtype",
            "mode",
            "traffic, n",
            "floor, n",
            *COMPARED,
            "kernels",
            "compiled in, s",
        ),
        layer_cells,
    ),
    "bottleneck": Table(
        "A training step of the inner bottleneck of a ResNet-50, (256, 56, 56, 256), bfloat16",
        ("layer", "traffic, MB", *COMPARED, "kernels", "compiled in, s"),
        block_cells,
    ),
    "collectives": Table(
        "Collectives of a layer's forward pass in training, bfloat16, the batch sharded",
        ("layer", "shape", "devices", "collectives", "bytes", "as few as Flax"),
        collective_cells,
    ),
    "functions": Table(
        "Public functions, float32",
        (
            "function",
            "size",
            "traffic, MB",
            "over arguments and results",
            "kernels",
            "notable operations",
        ),
        function_cells,
    ),
}
