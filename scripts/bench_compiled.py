"""Measure the memory traffic (HBM) of our layers, of Flax's layers and of all public functions.

The layers and functions are compiled for TPU v5e and H100.

    python scripts/bench_compiled.py            # half an hour of one core
    python scripts/bench_compiled.py --target v5e --only layers --shapes 256,56,56,256

The script needs no device, because libtpu and the CUDA plugin compile ahead of time (`make
bench-compiled` installs both). Without options, the script measures both targets in separate
processes, and writes a page and its results. The traffic of BatchNorm for v5e at (256, 112, 112,
64) in bfloat16 should be 8.00 times the bytes of its input.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from experiments import cli, files
from experiments.options import Flat, LocalPath

OUT = Path("docs/results/compiled")
PLUGINS = {"v5e": "libtpu", "h100": "jax-cuda12-plugin"}


@dataclass(frozen=True)
class Options:
    """Which layers and functions are compiled, and for which chips.

    Attributes:
      target: The chip to compile for; by default both chips.
      only: The table to measure; by default all tables.
      shapes: The shapes of the layers' inputs, such as 256,56,56,256; by default five shapes.
      dtype: The dtype of the layers; by default both bfloat16 and float32.
      out: The folder for the page and the results. The default is docs/results/compiled if no other
        option is given. With other options and without `out`, the script writes nothing.
    """

    target: Literal["v5e", "h100"] | None = None
    only: Literal["layers", "bottleneck", "collectives", "functions"] | None = None
    shapes: tuple[str, ...] = ()
    dtype: Literal["bfloat16", "float32"] | None = None
    out: LocalPath | None = None


def main(options: Flat[Options]) -> None:
    """Compile all layers and functions, print a line for each, and write a page."""
    import jax

    from experiments.compiled import layers as compiled_layers, tables as compiled_tables
    from experiments.compiled.compile_only import check_plugin, in_own_process
    from experiments.pages import compiled as compiled_page, page

    targets = [options.target] if options.target else list(compiled_tables.TARGETS)
    tables = [options.only] if options.only else list(compiled_tables.TABLES)
    shapes = [shape_of(text) for text in options.shapes] or compiled_layers.SHAPES
    dtypes = [options.dtype] if options.dtype else compiled_layers.DTYPES
    for name in targets:
        check_plugin(name)
    cli.say(*compiled_tables.LIMITS, "n: the bytes of a layer's input.")
    out = OUT if options == Options() else options.out
    jax.config.update("jax_platforms", "cpu")
    origin = cli.provenance(__file__) if out else {}
    with files.in_use(out, __file__) if out else nullcontext():
        rows = {name: in_own_process(measured, name, tables, shapes, dtypes) for name in targets}
        if out is not None:
            results = origin | {
                "plugins": {PLUGINS[name]: version(PLUGINS[name]) for name in targets},
                "seconds": cli.seconds(),
                "seeds": None,
                "targets": rows,
            }
            page.write(results, compiled_page.render, out)
            cli.say(f"Written: {out}/index.html")


def measured(
    target: str, tables: Sequence[str], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> dict[str, list[dict]]:
    """The rows of each table for one chip; each row is printed as soon as it is measured."""
    from experiments.compiled import tables as compiled_tables

    rows: dict[str, list[dict]] = {}
    for name in tables:
        table = compiled_tables.TABLES[name]
        cli.say("", f"{target}: {table.title}", " | ".join(table.columns))
        rows[name] = []
        for row in compiled_tables.rows(target, name, shapes, dtypes):
            rows[name].append(row)
            cli.say(" | ".join(table.cells(row)))
    return rows


def shape_of(text: str) -> tuple[int, ...]:
    """A shape from the command line, such as 256,56,56,256."""
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise cli.InputError(
            f"--shapes must be sizes such as 256,56,56,256 or 8192,4096; got {text}"
        )
    return shape


if __name__ == "__main__":
    cli.run(main)
