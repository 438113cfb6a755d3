"""Find the largest numbers of units whose forward pass has at most a given memory traffic.

The traffic is the number of bytes that the pass reads from and writes to the memory of a chip. The
decoder is compiled ahead of time, from shapes alone, for a chip that is not attached.
"""

import multiprocessing
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jax.sharding import Sharding, SingleDeviceSharding

from experiments.cli import InputError
from experiments.compiled.compile_only import compile_only_devices, measure, place
from experiments.language import budget, choice, decoder, removal, streams
from experiments.language.budget import Wanted
from experiments.language.choice import Model
from experiments.language.removal import Counts

# the smallest topology of each chip; only one chip of the topology is used
TOPOLOGIES = {"v5e": "v5e:2x2", "h100": "h100"}
DTYPE = jnp.bfloat16


def choose(folder: Path, wanted: Wanted, tokens: int) -> Counts:
    """Find, in a new process, the largest numbers of units that keep memory traffic in a budget.

    A new process is needed, because a process can compile for only one kind of chip, and can then
    run computations only on the CPU.

    Args:
      folder: The folder of the model.
      wanted: The budget. A forward pass over one sequence may read and write at most `gigabytes` in
        the memory of the chip `target`, which is a key of `TOPOLOGIES`.
      tokens: Number of tokens of the sequence.

    Raises:
      InputError: No counts meet the budget, or the compiler is not installed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(find, folder, wanted, tokens).result()


def find(folder: Path, wanted: Wanted, tokens: int) -> Counts:
    """Find, in this process, the largest numbers of units that keep memory traffic in a budget."""
    try:
        device = compile_only_devices(TOPOLOGIES[wanted.target])[0]
    except ValueError as error:
        raise InputError(str(error)) from error
    _, model = choice.read_model(folder)
    cost = partial(traffic, model, tokens, SingleDeviceSharding(device))
    return largest(model, wanted, 1e9 * (wanted.gigabytes or 0), cost)


def largest(model: Model, wanted: Wanted, limit: float, cost: Callable[[Counts], float]) -> Counts:
    """The largest candidate (numbers of units) whose cost is at most `limit`.

    The search is a bisection, which assumes that smaller candidates move fewer bytes.

    Raises:
      InputError: No candidate costs at most the limit.
    """
    whole, cost = model.architecture, cache(cost)
    budget.check_units(whole, wanted)
    listed = budget.candidates(whole, budget.explicit(whole, wanted), wanted)
    found = [counts for counts in dict.fromkeys(listed) if budget.allowed(whole, counts)]
    at = bisect_left(found, -limit, key=lambda counts: -cost(counts))
    if at == len(found):
        units = ", ".join(budget.free_units(whole, wanted))
        smallest = min(map(cost, found[-1:]), default=0.0)
        raise InputError(
            "--gigabytes must be at least the traffic of the smallest model; got "
            f"{limit / 1e9:.3g}, and the model with the fewest {units} needs {smallest / 1e9:.3g}"
        )
    return found[at]


def traffic(model: Model, tokens: int, sharding: Sharding, counts: Counts) -> float:
    """The bytes that a forward pass over one sequence reads from and writes to a chip's memory.

    One layer is compiled, and its bytes are multiplied by the number of layers. The bytes of the
    output layer are added. The bytes of the embedding's rows are not counted.
    """
    small = removal.smaller_architecture(model.architecture, first_units(model, counts))
    program = streams.without_layers(small)
    sizes = removal.axis_sizes(small, counts)

    def shape(name: str) -> ShapeDtypeStruct:
        axes = zip(removal.AXES[removal.short(name)], model.tensors[name].shape, strict=True)
        return ShapeDtypeStruct(tuple(sizes.get(axis, n) for axis, n in axes), DTYPE)

    params = {short: shape(name) for short, name in removal.layer_names(model.tensors, 0)}
    x = ShapeDtypeStruct((1, tokens, counts.hidden), DTYPE)
    at = jax.tree.map(
        lambda a: ShapeDtypeStruct(a.shape, a.dtype if a.dtype == bool else DTYPE),
        decoder.positions(small, 0, tokens),
    )
    arguments = place((params, x, at), sharding)
    of_layer = measure(partial(decoder.layer, program), *arguments)
    head = removal.EMBEDDING if model.tied else removal.HEAD
    ends: list[Any] = [shape(removal.NORM), shape(head), x]
    if removal.NORM_BIAS in model.tensors:
        ends.append(shape(removal.NORM_BIAS))
    of_ends = measure(partial(decoder.logits, program), *place(ends, sharding))
    return counts.layers * of_layer.bytes + of_ends.bytes


def first_units(model: Model, counts: Counts) -> removal.Selection:
    """A selection of the first units of each kind, with the given numbers of units.

    The traffic depends only on the numbers of units, not on which units are selected.
    """
    whole = removal.whole(model.architecture)
    groups, intermediate, experts = (
        [units[:count] for units in part]
        for part, count in (
            (whole.groups, counts.groups),
            (whole.intermediate, counts.intermediate),
            (whole.experts, counts.experts),
        )
    )
    layers, hidden = whole.layers[: counts.layers], whole.hidden[: counts.hidden]
    return removal.Selection(layers, groups, intermediate, hidden, experts)
