"""One program compiled for a device that is not attached, and what is read from it."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import ShapeDtypeStruct
from jax.sharding import Sharding

from experiments.benchmarks.compiled_traffic import Collective, collectives, summary


class Measured(NamedTuple):
    bytes: float  # HBM traffic
    temporary: int  # bytes of temporary memory
    arguments_and_results: int  # their bytes
    kernels: int
    notable: Counter
    unknown_loops: int
    collectives: list[Collective]
    seconds: float  # of compilation


def measure(program: Callable, *arguments: Any) -> Measured:
    """Compile `program` for the devices of the shardings of `arguments`, and read the result."""
    start = time.perf_counter()
    compiled = jax.jit(program).trace(*arguments).lower().compile()
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    traffic = summary(text)
    return Measured(
        traffic.bytes,
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes + memory.output_size_in_bytes,
        traffic.kernels,
        traffic.notable,
        traffic.unknown_loops,
        collectives(text),
        seconds,
    )


def placed(tree: Any, sharding: Sharding) -> Any:
    """The shapes of `tree` as arguments on a device."""
    return jax.tree.map(lambda x: ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
