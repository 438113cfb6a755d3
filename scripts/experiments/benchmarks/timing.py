"""Measure the times of two functions that run alternately, and record their memory."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.cli import say


class Pair(NamedTuple):
    """Two functions whose times are compared, and a function that only copies the data.

    Attributes:
      name: The names of our function and of the other function, with a slash between them.
      ours: Runs our function; takes no arguments.
      peer: Runs the other function; takes no arguments.
      copy: Copies the data; takes no arguments.
      memory: The bytes of our function's results and temporary arrays, divided by the same bytes
        for the other function.
      runs: The largest number of timed runs, for functions that take seconds.
      like: The name of a set of pairs that differ only in size. The table shows the mean ratio of
        each set.
    """

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    copy: Callable[[], Any] | None = None
    memory: float | None = None
    runs: int | None = None
    like: str | None = None


class Timing(NamedTuple):
    """The median times of the two functions of a pair, and statistics of the ratio of the times.

    A ratio is the time of one run of our function, divided by the time of the next run of the other
    function. The statistics are the median and the quartiles of the ratios. `copies` is the time of
    our function, divided by the time of a copy of the data.
    """

    name: str
    ours_ms: float
    peer_ms: float
    ratio: float
    quartiles: tuple[float, float]
    copies: float | None = None
    memory: float | None = None


def time_pair(pair: Pair, runs: int) -> Timing:
    """The measured times of the two functions of a pair.

    Each function is timed min(`runs`, `pair.runs`) times.
    """
    runs = runs if pair.runs is None else min(runs, pair.runs)
    a, b = alternately(pair.ours, pair.peer, runs)
    low, ratio, high = map(float, np.quantile(a / b, (0.25, 0.5, 0.75)))
    ours, peer = float(np.median(a)), float(np.median(b))
    copies = None
    if pair.copy is not None:
        of_ours, of_copy = alternately(pair.ours, pair.copy, runs)
        copies = float(np.median(of_ours) / np.median(of_copy))
    return Timing(pair.name, 1e3 * ours, 1e3 * peer, ratio, (low, high), copies, pair.memory)


def alternately(
    ours: Callable[[], Any], peer: Callable[[], Any], runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """The seconds that `runs` runs of each function take, one array for each function.

    The two functions run alternately. The first three runs of each function warm up and are not
    returned.
    """
    seconds = np.empty((runs + 3, 2))
    for i, j in np.ndindex(seconds.shape):
        start = time.perf_counter()
        jax.block_until_ready((ours, peer)[j]())
        seconds[i, j] = time.perf_counter() - start
    return seconds[3:, 0], seconds[3:, 1]


def torch_on_all_cores(peer: str) -> Any | None:
    """The module of PyTorch, for a comparison with JAX on a CPU.

    If the comparison is not possible, the function prints the reason and returns None.
    """
    if jax.default_backend() != "cpu":
        say(f"{peer} is left out: PyTorch would run on the CPU, and JAX runs on another device")
        return None
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        say(f"{peer} is left out: pip install 'jaxnorm[bench]' for torch")
        return None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


class Compiled(NamedTuple):
    run: Callable[[], Any]
    memory: int  # the bytes of the program's results and temporary arrays


def compiled(function: Callable, *arguments: Any) -> Compiled:
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis()
    size = 0 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return Compiled(lambda: program(*arguments), size)


def peers() -> dict[str, str]:
    """The versions of the compared libraries that are installed."""
    found = {}
    for name in ("flax", "scipy", "torch", "ott-jax"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
