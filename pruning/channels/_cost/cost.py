"""Counts the operations and bytes of a network, and measures the time for a batch of samples."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm.internal import check_on_host, check_whole
from pruning._arguments import at_least, check_values
from pruning.channels._coupling.groups import arrays_of
from pruning.channels._coupling.rules import summed_of_product
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    shape_of,
    subprograms,
)
from pruning.channels._program.interpret import check_apply, trace_apply

RUNS = 10


class Timing(NamedTuple):
    """The time, samples per second and bytes of memory of a compiled network on one batch."""

    milliseconds: float
    samples_per_second: float
    memory: int


class Executable(NamedTuple):
    """A compiled program, with the arrays or shapes of its arguments."""

    compiled: Any
    arguments: tuple[Tree, ...]


class Cost(NamedTuple):
    """The cost of one evaluation of a network.

    Attributes:
      parameters: The number of elements of all arrays of `params`.
      macs: The number of multiply-accumulates in convolutions and matrix products.
      size: The bytes of all arrays of `params`; a saved file also has a header.
      timings: The measured timings, one for each batch size.
    """

    parameters: int
    macs: int
    size: int
    timings: Mapping[int, Timing]


def cost(apply: Apply, params: Tree, *inputs: Tree, batch_sizes: Sequence[int] = ()) -> Cost:
    """The cost of `apply(params, *inputs)`, with the running time at each of the `batch_sizes`.

    Multiply-accumulates are computed from the shapes in the traced program, as in publications.
    Multiply-accumulates with the zeros of a convolution's padding are counted. Elementwise
    operations are not counted. If a program has branches, only the branch with the most
    multiply-accumulates is counted. The body of a loop is counted once if the number of iterations
    is not known. To get numbers that are comparable with published numbers, pass a batch of one
    image.

    Timings are measured on the host, so `cost` with `batch_sizes` cannot run under `jit` or `grad`.
    Without `batch_sizes`, `cost` can run under `jit` and `grad`. Each timing is the median of ten
    runs of the compiled program after a warm-up run. The number of bytes of memory includes the
    arguments, the result and all temporary arrays. If the compiler does not report memory, the
    number of bytes is 0.

    Args:
      apply: A function that JAX can trace, such as a model in evaluation mode.
      params: Any tree of arrays. Running statistics in `params` are also counted.
      inputs: The other arguments of `apply`, with samples on the first axis. Without `batch_sizes`,
        a `jax.ShapeDtypeStruct` can be passed instead of any array.
      batch_sizes: The batch sizes to measure. For each batch size, the first axis of `inputs` is
        repeated or cut to the batch size.

    Raises:
      TypeError: `apply` is not a function, or `batch_sizes` is not a list of whole numbers.
      ValueError: A batch size is less than 1, or `apply` cannot be traced at the given arguments.

    Example:
      >>> def dense(params, x):
      ...     return x @ params
      >>> small = cost(dense, np.ones((4, 3)), np.ones((1, 4)))
      >>> print(small.parameters, small.macs, small.size)
      12 12 96
    """
    check_apply(apply)
    if isinstance(batch_sizes, int | np.integer):
        raise TypeError(f"batch_sizes must be a list, such as [{batch_sizes}]; got {batch_sizes}")
    if batch_sizes:
        check_on_host("a timing of cost", params, inputs, instead="leave batch_sizes empty")
        check_values("a timing of cost", params, inputs)
    for size in batch_sizes:
        check_whole(batch_sizes=size)
        if size < 1:
            raise ValueError(f"batch_sizes must be at least 1; got {size}")
    leaves = arrays_of(params)
    return Cost(
        sum(leaf.size for leaf in leaves),
        macs(trace_apply(apply, params, inputs)[0]),
        sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
        {size: _timing(apply, params, inputs, size) for size in batch_sizes},
    )


def macs(program: Program) -> int:
    return sum(_of_equation(eqn) for eqn in program.eqns)


def _of_equation(eqn: Equation) -> int:
    if (summed := summed_of_product(eqn)) is not None:
        sides = (shape_of(eqn.invars[k])[axis] for (k, axis), *_ in summed)
        return math.prod((*shape_of(eqn.outvars[0]), *sides))
    inner = list(map(macs, subprograms(eqn)))
    if eqn.primitive.name == "cond":
        return max(inner)
    return eqn.params["length"] * sum(inner) if eqn.primitive.name == "scan" else sum(inner)


def _timing(apply: Apply, params: Tree, inputs: Sequence[Tree], size: int) -> Timing:
    """The timing of `apply` on `inputs` that are repeated or cut to a batch of `size` samples."""

    def of_size(x: Leaf) -> jax.Array:
        return jnp.asarray(np.resize(np.asarray(x), (size, *np.shape(x)[1:])))

    arguments = (params, *jax.tree.map(of_size, tuple(inputs)))
    compiled = jax.jit(apply).lower(*arguments).compile()
    (median,) = milliseconds([Executable(compiled, arguments)])
    memory, needed = compiled.memory_analysis(), 0
    if memory is not None:
        needed = (
            memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
        )
    return Timing(median, 1e3 * size / median, needed)


def milliseconds(programs: Sequence[Executable], *, runs: int = RUNS) -> list[float]:
    """For each program, the median time of one execution in milliseconds.

    The programs run in turn, until each program has run `runs` times.

    Raises:
      ValueError: `runs` is less than 1, or an argument of a program is a shape without values.
    """
    at_least(1, runs=runs)
    leaves = jax.tree.leaves([program.arguments for program in programs])
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise ValueError(
            "milliseconds must be measured on arrays; got shapes: measure compiled_flops or "
            "compiled_bytes, which take shapes"
        )

    def call(program: Executable) -> None:
        jax.block_until_ready(program.compiled(*program.arguments))

    list(map(call, programs))  # The first call of each program is slower, and is not measured.
    seconds = np.empty((runs, len(programs)))
    for i, j in np.ndindex(seconds.shape):
        start = time.perf_counter()
        call(programs[j])
        seconds[i, j] = time.perf_counter() - start
    return (1e3 * np.median(seconds, axis=0)).tolist()
