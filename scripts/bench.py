"""Speed against Flax and SciPy, as ratios of times taken alternately in one process.

    python scripts/bench.py            # about eight minutes on 2 cores

Every pair is compiled and warmed up first; the two are then timed in turn, and the ratio is that of
the medians, with the quartiles of the ratios of neighbours. Below 1, ours is faster. Layers are
also set beside a plain copy of their input, the floor that memory sets, and beside the memory that
Flax's compiled program takes for results and temporaries.
"""

if __name__ == "__main__":  # for the seconds of the imports
    from experiments import signals

    signals.before_imports()

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro

from experiments import cli
from experiments.benchmarks import distances, geometry, layers, pruning, training
from experiments.benchmarks.timing import Pair, timed
from experiments.options import at_least, checked
from experiments.progress import progress_bar

HEAD = ("what", "ours, ms", "peer, ms", "ratio", "quartiles", "copy", "memory")
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True)
class Options:
    """What is timed.

    Attributes:
      runs: Timed runs of each side, after warming up.
      dtype: In which layers and networks compute, float32 or bfloat16; parameters and statistics
        are float32.
      only: Time the groups of one subject: layers, distances, pruning, geometry or training.
    """

    runs: Annotated[int, at_least(3)] = 30
    dtype: str = "float32"
    only: str | None = None


@checked
def main(options: tyro.conf.OmitArgPrefixes[Options]) -> None:
    """Time our functions beside their peers and print a table of each group."""
    groups = chosen(options)
    settings = f"{options.dtype}, {options.runs} runs a side"
    with progress_bar() as progress:
        task = progress.add_task("timing", total=len(groups))
        for title, group in groups.items():
            progress.update(task, description=title)
            rows = timed_rows(group(), options.runs)
            device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
            progress.advance(task)
            title = f"{title}; {device}, {settings}"
            cli.show_table(title, HEAD, rows, min_width=120, left=HEAD[:1])


def chosen(options: Options) -> dict[str, Callable[[], Iterable[Pair]]]:
    """The groups of pairs that are timed, by title."""
    if options.dtype not in DTYPES:
        raise cli.InputError(f"--dtype must be one of {', '.join(DTYPES)}; got {options.dtype}")
    subjects = {
        "layers": layers.groups(DTYPES[options.dtype]),
        "distances": distances.groups(),
        "pruning": pruning.groups(),
        "geometry": geometry.groups(),
        "training": training.groups(),
    }
    if options.only is not None and options.only not in subjects:
        raise cli.InputError(f"--only must be one of {', '.join(subjects)}; got {options.only}")
    names = subjects if options.only is None else [options.only]
    return {title: group for name in names for title, group in subjects[name].items()}


def timed_rows(pairs: Iterable[Pair], runs: int) -> list[list[str]]:
    """A row for each pair, and the geometric mean of the pairs of one function."""
    rows: list[list[str]] = []
    ratios: dict[str, list[float]] = {}
    for pair in pairs:
        ratio, cells = timed(pair, runs)
        ratios.setdefault(pair.name.split()[0], []).append(ratio)
        rows.append([pair.name, *cells])
    for name, values in ratios.items():
        if len(values) > 1:
            mean = statistics.geometric_mean(values)
            rows.append([f"{name}, geometric mean", "", "", f"{mean:.2f}"])
    return rows


if __name__ == "__main__":
    cli.run(main)
