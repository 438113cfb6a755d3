"""Evaluates a traced program, with its calls, branches and loops, on channel ids.

Channel ids say to which channel each index of an axis belongs.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm.internal import is_traced
from pruning.channels._coupling.channel_ids import (
    ChannelIds,
    UnionFind,
    Values,
    Vector,
    fixed,
    free,
    is_free,
)
from pruning.channels._coupling.rules import apply_rule
from pruning.channels._coupling.splits import splits_of
from pruning.channels._program.calls import (
    Equation,
    Leaf,
    Program,
    Variable,
    call_of,
    shape_of,
    subprograms,
)
from pruning.channels._program.interpret import interpret

T = TypeVar("T")
Ids = tuple[Sequence[Values], list[ChannelIds]]
"""The channel ids of the arguments of an equation's programs, and of the equation's results."""


def evaluate(program: Program, sets: UnionFind, values: Values) -> list[ChannelIds]:
    """The channel ids of the results of `program`, including its calls, branches and loops."""
    sets.splits |= splits_of(program)

    def step(eqn: Equation, operands: Values) -> list[ChannelIds]:
        return equation_ids(sets, eqn, operands)[1]

    return interpret(program, values, ids_of_constant, step, enter_calls=False)


def ids_of_constant(array: Leaf) -> ChannelIds:
    # A constant keeps its size, so no channel along its axes can be removed.
    axes = tuple(fixed(n) for n in np.shape(array))
    dtype, known = jax.typeof(array).dtype, not axes and not is_traced(array)
    if known and (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        number = float(array)
        return ChannelIds(axes, number=number, at_zero=number, given=True, constant=True)
    return ChannelIds(axes, given=True, constant=True)


def equation_ids(sets: UnionFind, eqn: Equation, operands: Values) -> Ids:
    """For an equation, the channel ids of the arguments of its inner programs, and of its results.

    A `jit` keeps the attribute `uniform` of operands and results. For other calls, branches and
    loops, `uniform` is set to None.
    """
    call, inner = call_of(eqn), subprograms(eqn)
    block = BLOCKS.get(eqn.primitive.name)
    if inner and (call is None or call.kind != "jit"):
        operands = [value._replace(uniform=None) for value in operands]
    with sets.inside(eqn):
        if call is not None:
            arguments, results = [operands], evaluate(call.program, sets, operands)
        elif block is not None:
            arguments, results = block(sets, eqn, operands)
        else:
            shapes = [[x.shape for x in program.in_avals] for program in inner]
            arguments = [[ChannelIds(tuple(map(fixed, s))) for s in own] for own in shapes]
            return arguments, apply_rule(eqn, sets, operands)
    if call is None or call.kind != "jit":
        results = [value._replace(uniform=None) for value in results]
    return arguments, results


def cond_ids(sets: UnionFind, eqn: Equation, values: Values) -> Ids:
    """The channel ids of the results of a `cond`, united over all branches."""
    index, *operands = values
    branches = eqn.params["branches"]
    results = [evaluate(branch, sets, operands) for branch in branches]
    either = (_either(sets, alternatives) for alternatives in zip(*results, strict=True))
    either = [value._replace(given=value.given and index.given) for value in either]
    return [operands] * len(branches), either


def scan_ids(sets: UnionFind, eqn: Equation, values: Values) -> Ids:
    """The channel ids of a scan's results; the body of the scan is one program for all steps."""
    constants, carried = scan_parts(eqn)
    whole = constants + carried
    before, stacked = list(values[:constants]), []
    for value in values[whole:]:
        steps, *axes = value.axes
        # The axis along which a scan reads parameters counts layers, not channels. Unlike `pin`,
        # `fix` does not report that channels along the axis of layers cannot be removed.
        (sets.fix if value.given else sets.pin)(steps)
        stacked.append(value._replace(axes=tuple(axes)))

    def body(carry: list[ChannelIds]) -> list[ChannelIds]:
        return evaluate(eqn.params["jaxpr"], sets, [*before, *carry, *stacked])

    carry, results = _settle_carry(sets, values[constants:whole], body)
    length = fixed(eqn.params["length"])
    outer = [v._replace(axes=(length, *v.axes)) for v in results[carried:]]
    return [[*before, *carry, *stacked]], [*carry, *outer]


def while_ids(sets: UnionFind, eqn: Equation, values: Values) -> Ids:
    condition, constants, start = while_parts(eqn, values)

    def body(carry: list[ChannelIds]) -> list[ChannelIds]:
        return evaluate(eqn.params["body_jaxpr"], sets, [*constants, *carry])

    carry, _ = _settle_carry(sets, start, body)
    evaluate(eqn.params["cond_jaxpr"], sets, [*condition, *carry])
    given = all(v.given for v in values)
    results = [v._replace(given=given) for v in carry]
    return [[*constants, *carry], [*condition, *carry]], results


def shard_map_ids(sets: UnionFind, eqn: Equation, values: Values) -> Ids:
    """The channel ids of the results of a `shard_map`.

    Channels along axes that the mesh splits cannot be removed.
    """
    (program,), params = subprograms(eqn), eqn.params
    inner = _reshard(sets, eqn, values, params["in_specs"], program.jaxpr.invars)
    results = evaluate(program, sets, inner)
    return [inner], _reshard(sets, eqn, results, params["out_specs"], eqn.outvars)


def _reshard(
    sets: UnionFind,
    eqn: Equation,
    values: Values,
    specs: Sequence[Any],
    variables: Sequence[Variable],
) -> list[ChannelIds]:
    """The channel ids of `values`, after these arrays enter or leave a `shard_map`.

    `variables` stand for the arrays after they have entered or left the `shard_map`. Inside a
    `shard_map`, an array is the part that one device has, so its shape may differ from the shape
    outside.
    """

    def axis(ids: Vector, names: Any, size: int) -> Vector:
        names = names if isinstance(names, tuple) else (names,)
        if all(name is None or eqn.params["mesh"].shape[name] == 1 for name in names):
            return ids
        if is_free(ids):
            return free(size)
        sets.pin(ids)
        return sets.new_pinned(size)

    found = []
    for value, spec, variable in zip(values, specs, variables, strict=True):
        names = (*spec, *[None] * (len(value.axes) - len(spec)))
        axes = map(axis, value.axes, names, shape_of(variable))
        found.append(value._replace(axes=tuple(axes)))
    return found


def while_parts(eqn: Equation, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """The constants of a loop's condition, the constants of its body, and its carry."""
    first = eqn.params["cond_nconsts"]
    second = first + eqn.params["body_nconsts"]
    return list(values[:first]), list(values[first:second]), list(values[second:])


def _settle_carry(
    sets: UnionFind, start: Values, body: Callable[[list[ChannelIds]], list[ChannelIds]]
) -> tuple[list[ChannelIds], list[ChannelIds]]:
    """The channel ids of a loop's carry, which are equal at every step, and of the body's results.

    The body is one program for all steps. Therefore the body is evaluated on channel ids again
    until the facts about the carry stay the same.
    """

    def known(values: list[ChannelIds]) -> list[Any]:
        """All facts about each array except its channel ids.

        The ids need no comparison, because united ids are never separated.
        """
        return [v._replace(axes=tuple(map(is_free, v.axes))) for v in values]

    carry = [_name_free_axes(sets, k, value) for k, value in enumerate(start)]
    while True:
        results = body(carry)
        after = [_either(sets, pair) for pair in zip(carry, results, strict=False)]
        if known(carry) == known(after):
            return after, results
        carry = after


def _name_free_axes(sets: UnionFind, number: int, value: ChannelIds) -> ChannelIds:
    """`value`, the initial state of a loop, with new channel ids for the axes without ids.

    An axis that a broadcast makes is free, such as each axis of `jnp.zeros`. An axis gets the same
    ids in each evaluation of the loop. Later equations may unite the new ids with channels.
    """
    axes = list(value.axes)
    for k, axis in enumerate(value.axes):
        if axis.size > 1 and is_free(axis):
            key = (*map(id, sets.equations), number, k)
            if key not in sets.states:
                sets.states[key] = sets.equations, sets.new(axis.size)
            axes[k] = sets.states[key][1]
    zero = sets.zero_at(value, axes)
    whole = value._replace(axes=tuple(axes), zero=zero, constant=False)
    return whole._replace(number=None, at_zero=None)


def scan_parts(eqn: Equation) -> tuple[int, int]:
    """The numbers of constants and of carries of a scan.

    All other operands and results are stacked: they have one more axis than in the body.
    """
    inner = eqn.params["jaxpr"].jaxpr
    carried = sum(map(_same_rank, eqn.outvars, inner.outvars))
    return sum(map(_same_rank, eqn.invars, inner.invars)) - carried, carried


def _same_rank(outer: Variable, inner: Variable) -> bool:
    return len(shape_of(outer)) == len(shape_of(inner))


BLOCKS: dict[str, Callable[[UnionFind, Equation, Values], Ids]] = {
    "cond": cond_ids,
    "scan": scan_ids,
    "shard_map": shard_map_ids,
    "while": while_ids,
}


def _either(sets: UnionFind, values: Values) -> ChannelIds:
    """The channel ids of an array that may be any one of `values`."""
    axes = sets.union_all(values, [axis.size for axis in values[0].axes])
    zero = sets.all_zero(values, axes)
    nonzero, given = all(v.nonzero for v in values), all(v.given for v in values)
    chosen = all(v.given or v.chosen for v in values)
    return ChannelIds(axes, zero, nonzero=nonzero, given=given, chosen=chosen)
