"""Finds the widths of a channel group at which the network costs less than at larger widths.

The cost is a measured time, or a number that XLA estimates for the compiled program. Hardware
computes a block of channels, called a tile, at once. Therefore a network with slightly fewer
channels may cost as much as the whole network, or more.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxnorm.internal import check_function, check_on_host
from pruning.channels._cost.cost import Executable, milliseconds
from pruning.channels._cost.cost_at import check_widths
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._program.calls import Apply, Tree
from pruning.channels._removal.removal import remove_channels
from pruning.channels._removal.resizing import resized

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class WidthCost(NamedTuple):
    """The network's cost at one `width` of a group; `worth` says if the width saves enough."""

    width: int
    cost: float
    worth: bool


Measure = Callable[[Sequence[Executable]], Sequence[float]]


def compiled_flops(programs: Sequence[Executable]) -> list[float]:
    """For each program, the number of floating-point operations that the compiler counts.

    The programs are not executed, so the counts predict the running time only roughly.

    Raises:
      ValueError: The compiler does not report a number of operations.
    """
    return [_count(program, "flops") for program in programs]


def compiled_bytes(programs: Sequence[Executable]) -> list[float]:
    """For each program, the number of bytes read and written, as counted by the compiler.

    The programs are not executed, so the counts predict the running time only roughly.

    Raises:
      ValueError: The compiler does not report a number of bytes.
    """
    return [_count(program, "bytes accessed") for program in programs]


def compiled_cycles(programs: Sequence[Executable]) -> list[float]:
    """For each program, the number of cycles that the compiler for TPUs estimates.

    The programs are not executed, so the counts predict the running time only roughly. A TPU
    computes in tiles of 128 channels. The estimated cycles depend on the number of tiles, unlike
    the results of `compiled_flops` and `compiled_bytes`. The cycles of a kernel inside a loop are
    counted once.

    Raises:
      ValueError: The compiler estimates no cycles. Compilers for CPUs and GPUs do not estimate
        cycles.
    """
    found = [CYCLES.findall(program.compiled.as_text() or "") for program in programs]
    if not all(found):
        raise ValueError(
            "the program must be compiled for a TPU, because only the TPU compiler estimates "
            "cycles; this program has no estimates"
        )
    return [float(sum(map(int, of_kernels))) for of_kernels in found]


def _count(program: Executable, quantity: str) -> float:
    found = program.compiled.cost_analysis() or {}
    if quantity not in found:
        known = ", ".join(found) or "nothing, as for a GPU that is not present"
        raise ValueError(f"the compiler must report {quantity}; it reports {known}")
    return float(found[quantity])


def widths_for(
    apply: Apply,
    params: Tree,
    group: ChannelGroup,
    *inputs: Tree,
    widths: Sequence[int],
    measure: Measure = milliseconds,
    margin: int | float = 0,
) -> tuple[WidthCost, ...]:
    """The cost of the network at each width of one group, with a mark at widths that save enough.

    For each width, `widths_for` compiles the network by `resized`, with `width` channels of `group`
    and all channels of all other groups. The default measure, `milliseconds`, measures running
    times on the present device. For a device that is not present, pass shapes on a topology of
    `jax.experimental.topologies` as `jax.ShapeDtypeStruct(..., sharding=...)`, and choose a measure
    that uses the compiler's count instead of a time. For a TPU, use `compiled_cycles`.
    `compiled_flops` and `compiled_bytes` ignore that hardware computes whole tiles of channels.

    Args:
      apply: A function that JAX can trace, as for `coupled_channels`.
      params: The tree from which the group was read, or its shapes.
      group: One group of `coupled_channels`.
      inputs: The other arguments of `apply`, or their shapes, at the batch size that you will use.
      widths: The widths to compare, in any order, such as `range(8, group.size + 1, 8)`.
      measure: A function from the compiled programs to one cost for each program: `milliseconds`,
        `partial(milliseconds, runs=30)`, `compiled_cycles`, `compiled_flops`, `compiled_bytes`, or
        another function.
      margin: The smallest saving that is worth having, as a fraction. A width is marked if its cost
        is below (1 − `margin`) times the cost of the next wider marked width. The widest width is
        always marked. Choose a fraction above the scatter of the measured times, such as 0.02.

    Returns:
      One `WidthCost` for each width, in ascending order of the widths.

    Raises:
      ValueError: `widths` is empty, or a width is less than 1 or more than the size of the group.
        `margin` lies outside [0, 1). `resized` or `measure` raises a ValueError.

    Example:
      >>> from pruning import coupled_channels
      >>> def tiled(params, x):
      ...     h = jax.nn.relu(x @ params["a"])
      ...     return h @ params["b"]
      >>> params, x = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}, np.ones((4, 2))
      >>> (group,) = coupled_channels(tiled, params, x)
      >>> for found in widths_for(tiled, params, group, x, widths=[4, 8], measure=compiled_flops):
      ...     print(found.width, found.worth)
      4 True
      8 True
    """
    check_on_host("widths_for", params, inputs, instead="give arrays, or their shapes")
    if not 0 <= margin < 1:
        raise ValueError(f"margin must lie in [0, 1); got {margin}")
    if not (rising := sorted(set(widths))):
        raise ValueError("widths must hold at least one width; got none")
    check_function(measure, "measure", "pruning.channels.compiled_flops")
    costs = measure([_compiled(apply, params, group, inputs, width) for width in rising])
    if np.shape(costs) != (len(rising),):
        raise ValueError(
            f"measure must return one cost for each of {len(rising)} programs; got shape "
            f"{np.shape(costs)}"
        )
    found: list[WidthCost] = []
    bound = np.inf
    for width, cost in reversed(list(zip(rising, costs, strict=True))):
        worth = cost < bound
        bound = (1 - margin) * cost if worth else bound
        found.append(WidthCost(width, cost, worth))
    return tuple(reversed(found))


def _compiled(
    apply: Apply, params: Tree, group: ChannelGroup, inputs: Sequence[Tree], width: int
) -> Executable:
    check_widths([group], [width])
    keep = [np.arange(group.size) < width]
    arguments = (remove_channels(params, [group], keep), *inputs)
    program = jax.jit(resized(apply, [group], keep)).lower(*arguments).compile()
    return Executable(program, arguments)
