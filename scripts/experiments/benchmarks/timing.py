"""Two programs timed in turn, and what one needs beside its arguments."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.cli import say


class Pair(NamedTuple):
    """Two ways to the same end, and what a copy of the data would take."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    copy: Callable[[], Any] | None = None
    memory: float | None = None  # temporary, ours over the peer's
    runs: int | None = None  # at most, where one call takes seconds


def timed(pair: Pair, runs: int) -> tuple[float, list[str]]:
    """Ratio of the medians, and the cells of the table's row."""
    runs = runs if pair.runs is None else min(runs, pair.runs)
    a, b = alternately(pair.ours, pair.peer, runs)
    low, high = np.quantile(a / b, (0.25, 0.75))
    ratio = float(np.median(a) / np.median(b))
    cells = [
        f"{1e3 * np.median(a):.2f}",
        f"{1e3 * np.median(b):.2f}",
        f"{ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
    ]
    copied = ""
    if pair.copy is not None:
        a, floor = alternately(pair.ours, pair.copy, runs)
        copied = f"{np.median(a) / np.median(floor):.1f}"
    return ratio, [*cells, copied, "" if pair.memory is None else f"{pair.memory:.2f}"]


def alternately(
    ours: Callable[[], Any], peer: Callable[[], Any], runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of `runs` calls of each, taken in turn after three warm-up calls."""
    seconds = np.empty((runs + 3, 2))
    for i, j in np.ndindex(seconds.shape):
        start = time.perf_counter()
        jax.block_until_ready((ours, peer)[j]())
        seconds[i, j] = time.perf_counter() - start
    return seconds[3:, 0], seconds[3:, 1]


def torch_on_all_cores(peer: str) -> Any | None:
    """PyTorch; where it is not installed, None and a line that says how `peer` is had."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        say(f"{peer} is left out: pip install 'jaxnorm[bench]' for torch")
        return None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


class Compiled(NamedTuple):
    run: Callable[[], Any]
    memory: int  # bytes of the program's results and temporaries


def compiled(function: Callable, *arguments: Any) -> Compiled:
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis()
    size = 0 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return Compiled(lambda: program(*arguments), size)
