"""Compare the times of our functions with the times of other libraries, such as Flax and SciPy.

    python scripts/bench.py            # 25 minutes or more on 2 cores

Our function and a function of a different library for the same task form a pair. After a warm-up,
the two functions of a pair run alternately in one process, and each run is timed. Two successive
runs give a ratio of times. The script prints the median of these ratios, and their quartiles. A
ratio below 1 means that our function is faster. The time of a layer is also divided by the time of
copying the layer's input. The memory of our compiled layer is divided by the memory of Flax's
compiled layer. After every group of pairs, `--out` writes the numbers to a file, with the load of
the machine when the script started.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from experiments import cli, files
from experiments.options import Flat, LocalPath, at_least, checked
from experiments.progress import progress_bar

if TYPE_CHECKING:
    from experiments.benchmarks.timing import Pair, Timing

HEAD = ("what", "ours, ms", "peer, ms", "ratio", "quartiles", "copy", "memory")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Options:
    """The benchmarks to run.

    Attributes:
      runs: The number of timed runs of each function, after a warm-up.
      dtype: The dtype of the inputs when `only` is layers: float32 or bfloat16. Parameters and
        statistics are always float32.
      only: The subject to time: layers, distances, pruning, coupling, halves, geometry, maps or
        training; by default all subjects.
      out: The JSON file for the numbers, such as docs/results/bench/layers.json; by default none.
    """

    runs: Annotated[int, at_least(3)] = 30
    dtype: str = "float32"
    only: str | None = None
    out: LocalPath | None = None


@checked
def main(options: Flat[Options]) -> None:
    """Time our functions and functions of other libraries; print a table for each group."""
    groups = choose(options)
    with files.in_use(options.out.parent) if options.out else nullcontext():
        for results in measure(groups, options):
            if options.out is not None:
                files.write_results(options.out, results)


def measure(
    groups: dict[str, Callable[[], Sequence["Pair"]]], options: Options
) -> Iterator[dict[str, Any]]:
    """Time all groups of function pairs, and print each group as soon as it is timed.

    Yields:
      After every group, the settings and the rows of all groups that have been timed so far.
    """
    import jax

    from experiments.benchmarks import timing

    provenance = cli.provenance(__file__) | {"peers": timing.peers(), "load": os.getloadavg()[0]}
    how = f"{options.dtype}, {options.runs} runs a side"
    found: dict[str, list[dict[str, Any]]] = {}
    with progress_bar() as progress:
        task = progress.add_task("timing", total=len(groups))
        for title, group in groups.items():
            progress.update(task, description=title)
            pairs = group()
            timings = [timing.time_pair(pair, options.runs) for pair in pairs]
            found[title] = [row._asdict() for row in timings]
            device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
            progress.advance(task)
            title = f"{title}; {device}, {how}"
            rows = [*map(cells, timings), *means(pairs, timings)]
            cli.show_table(title, HEAD, rows, min_width=120, left=HEAD[:1])
            settings = {"options": asdict(options) | {"out": str(options.out)}}
            settings |= {"seconds": cli.seconds(), "seeds": None}
            yield provenance | settings | {"groups": found}


def choose(options: Options) -> dict[str, Callable[[], Sequence["Pair"]]]:
    """For each group's title, the callable that makes the group's pairs of functions to time."""
    import jax.numpy as jnp

    from experiments.benchmarks import (
        coupling,
        distances,
        geometry,
        halves,
        layers,
        pruning,
        training,
        transformers,
    )

    if options.dtype not in DTYPES:
        raise cli.InputError(f"--dtype must be one of {', '.join(DTYPES)}; got {options.dtype}")
    subjects = {
        "layers": layers.groups(getattr(jnp, options.dtype)),
        "distances": distances.groups(),
        "pruning": pruning.groups(),
        "coupling": coupling.groups(),
        "halves": halves.groups() | transformers.groups(),
        "geometry": geometry.groups(),
        "maps": geometry.map_groups(),
        "training": training.groups(),
    }
    if options.only is not None and options.only not in subjects:
        raise cli.InputError(f"--only must be one of {', '.join(subjects)}; got {options.only}")
    names = subjects if options.only is None else [options.only]
    return {title: group for name in names for title, group in subjects[name].items()}


def cells(timing: "Timing") -> list[str]:
    """The cells of a pair's row: the times of both functions, their ratios, and the memory."""
    low, high = timing.quartiles
    return [
        timing.name,
        f"{timing.ours_ms:.2f}",
        f"{timing.peer_ms:.2f}",
        f"{timing.ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
        "" if timing.copies is None else f"{timing.copies:.1f}",
        "" if timing.memory is None else f"{timing.memory:.2f}",
    ]


def means(pairs: Sequence["Pair"], timings: Sequence["Timing"]) -> list[list[str]]:
    """For each function or layer, a row with the geometric mean of its ratios over all sizes."""
    ratios: dict[str, list[float]] = {}
    for pair, timing in zip(pairs, timings, strict=True):
        if pair.like is not None:
            ratios.setdefault(pair.like, []).append(timing.ratio)
    return [
        [f"{name}, geometric mean", "", "", f"{statistics.geometric_mean(values):.2f}"]
        for name, values in ratios.items()
        if len(values) > 1
    ]


if __name__ == "__main__":
    cli.run(main)
