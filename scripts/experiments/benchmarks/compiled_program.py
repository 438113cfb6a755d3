"""One program compiled for a device that is not attached, and what is read from it."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from experiments.benchmarks.compiled_traffic import summary


class Measured(NamedTuple):
    bytes: float  # HBM traffic
    temporary: int  # bytes of temporary memory
    kernels: int
    notable: Counter
    unknown_loops: int
    seconds: float  # of compilation


def measure(program: Callable, *arguments: Any) -> Measured:
    """Compile `program` for the devices of the shardings of `arguments`, and read the result."""
    start = time.perf_counter()
    compiled = jax.jit(program).trace(*arguments).lower().compile()
    seconds = time.perf_counter() - start
    found = summary(compiled)
    memory = compiled.memory_analysis()
    return Measured(
        found.bytes,
        memory.temp_size_in_bytes,
        found.kernels,
        found.notable,
        found.unknown_loops,
        seconds,
    )
