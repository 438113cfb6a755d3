"""Speed against Flax and SciPy, as ratios of times taken alternately in one process.

    python scripts/bench.py            # about eight minutes on 2 cores

Every pair is compiled and warmed up first; the two are then timed in turn, and the ratio is that of
the medians, with the quartiles of the ratios of neighbours. Below 1, ours is faster. Layers are
also set beside a plain copy of their input, the floor that memory sets, and beside the memory that
Flax's compiled program takes for results and temporaries.
"""

import math

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments import cli
from experiments.benchmarks import distances, geometry, layers, pruning, training
from experiments.benchmarks.timing import timed

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def main(runs: int = 30, dtype: str = "float32", only: str | None = None) -> None:
    """Time our functions beside their peers and print a table of each group.

    Args:
      runs: Timed runs of each side, after warming up; at least 3.
      dtype: In which layers and networks compute, float32 or bfloat16; parameters and statistics
        are float32.
      only: Time the groups of one subject: layers, distances, pruning, geometry or
        training.
    """
    cli.at_least(3, runs=runs)
    if dtype not in DTYPES:
        raise cli.InputError(f"--dtype must be one of {', '.join(DTYPES)}; got {dtype}")
    subjects = {
        "layers": layers.groups(DTYPES[dtype]),
        "distances": distances.groups(),
        "pruning": pruning.groups(),
        "geometry": geometry.groups(),
        "training": training.groups(),
    }
    if only is not None and only not in subjects:
        raise cli.InputError(f"--only must be one of {', '.join(subjects)}; got {only}")
    chosen = subjects if only is None else {only: subjects[only]}
    groups = {title: group for subject in chosen.values() for title, group in subject.items()}
    device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("timing", total=len(groups))
        for title, group in groups.items():
            progress.update(task, description=title)
            table = Table(title=f"{title}; {device}, {dtype}, {runs} runs a side")
            for column in ("what", "ours, ms", "peer, ms", "ratio", "quartiles", "copy", "memory"):
                table.add_column(column, justify="left" if column == "what" else "right")
            ratios: dict[str, list[float]] = {}
            for pair in group():
                ratio, cells = timed(pair, runs)
                ratios.setdefault(pair.name.split()[0], []).append(ratio)
                table.add_row(pair.name, *cells)
            progress.advance(task)
            for name, found in ratios.items():
                if len(found) > 1:
                    mean = math.exp(sum(map(math.log, found)) / len(found))
                    table.add_row(f"{name}, geometric mean", "", "", f"{mean:.2f}")
            Console(width=120).print(table)


if __name__ == "__main__":
    cli.run(main)
