"""Traced programs: how to interpret one, and its interpretation on ids of channels."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jaxnorm._numerics import is_traced
from pruning.channels._channel_ids import ChannelIds, UnionFind, fixed, is_free
from pruning.channels._rules import RULES
from pruning.channels._shape_rules import unknown

T = TypeVar("T")
CALLS = "jit pjit closed_call core_call custom_jvp_call custom_vjp_call checkpoint remat2"


def traced(
    apply: Callable[..., Any], params: Any, inputs: Sequence[Any]
) -> tuple[ClosedJaxpr, Any]:
    """The program of `apply(params, *inputs)`, its leaves in order as arguments, and its result."""
    try:
        return jax.make_jaxpr(apply, return_shape=True)(params, *inputs)
    except Exception as error:
        raise ValueError(
            f"apply must be traceable at these params and inputs; got {type(error).__name__}: "
            f"{error}; of an nnx module give a pure function of its state: see nnx.split"
        ) from error


def closed_jaxpr(program: Any) -> ClosedJaxpr:
    """`program`, a jaxpr closed over its constants or one without."""
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def interpret(
    program: Any,
    values: Sequence[T],
    constant: Callable[[Any], T],
    step: Callable[[Any, list[T]], Sequence[T]],
) -> list[T]:
    """The results of `program`, by `constant(array)` and, of an equation, `step(eqn, operands)`."""
    closed = closed_jaxpr(program)
    env: dict[Any, T] = dict(zip(closed.jaxpr.constvars, map(constant, closed.consts), strict=True))
    env |= dict(zip(closed.jaxpr.invars, values, strict=True))

    def read(variable: Any) -> T:
        return constant(variable.val) if is_literal(variable) else env[variable]

    for eqn in closed.jaxpr.eqns:
        results = step(eqn, [read(v) for v in eqn.invars])
        env |= dict(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in closed.jaxpr.outvars]


def is_literal(variable: Any) -> bool:
    return isinstance(variable, Literal)


def called(eqn: Any) -> Any:
    """The program that an equation does nothing but call, if it is such a call."""
    if eqn.primitive.name not in CALLS.split():
        return None
    return next(eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params)


def subprograms(eqn: Any) -> list[Any]:
    """The programs inside an equation: what it calls, its branches, the body of a loop."""
    leaves = jax.tree.leaves(eqn.params, is_leaf=_is_program)
    return list(filter(_is_program, leaves))


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def evaluate(program: Any, sets: UnionFind, values: Sequence[ChannelIds]) -> list[ChannelIds]:
    """The ids of the results of `program`; calls, branches and loops are entered."""
    return interpret(program, values, ids_of_constant, partial(equation_ids, sets))


def ids_of_constant(array: Any) -> ChannelIds:
    axes = tuple(fixed(n) for n in np.shape(array))  # of a size that cannot change
    dtype, known = jax.typeof(array).dtype, not axes and not is_traced(array)
    if known and (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        return ChannelIds(axes, number=float(array))
    return ChannelIds(axes)


def equation_ids(sets: UnionFind, eqn: Any, operands: Sequence[ChannelIds]) -> list[ChannelIds]:
    """The ids of the results of an equation."""
    name = eqn.primitive.name
    if (inner := called(eqn)) is not None:
        return evaluate(inner, sets, operands)
    if name == "cond":
        return _branches(eqn, sets, operands)
    if name == "scan":
        return scan_ids(sets, eqn, operands)[1]
    return RULES.get(name, unknown)(eqn, sets, *operands)


def _branches(eqn: Any, sets: UnionFind, values: Sequence[ChannelIds]) -> list[ChannelIds]:
    """Every branch must give results of the same channels."""
    _, *operands = values
    results = [evaluate(branch, sets, operands) for branch in eqn.params["branches"]]
    return [_either(sets, alternatives) for alternatives in zip(*results, strict=True)]


def scan_ids(
    sets: UnionFind, eqn: Any, values: Sequence[ChannelIds]
) -> tuple[list[ChannelIds], list[ChannelIds]]:
    """The ids of the arguments of the body, and of the results.

    The body is the same at every step: repeated until the ids of its carry are those before.
    """
    body = eqn.params["jaxpr"]
    constants, carried = scan_parts(eqn)
    whole = constants + carried
    before, carry = list(values[:constants]), list(values[constants:whole])
    stacked = []
    for value in values[whole:]:
        steps, *axes = value.axes
        sets.union(steps, fixed(steps.size))  # a number of layers, not of channels
        stacked.append(ChannelIds(tuple(axes), value.weight))
    while True:
        results = evaluate(body, sets, [*before, *carry, *stacked])
        after = [_either(sets, pair) for pair in zip(carry, results[:carried], strict=True)]
        if all(map(_settled, carry, after)):
            break
        carry = after
    length = fixed(eqn.params["length"])
    outer = [ChannelIds((length, *value.axes), value.weight) for value in results[carried:]]
    return [*before, *after, *stacked], [*after, *outer]


def scan_parts(eqn: Any) -> tuple[int, int]:
    """How many constants and how many carries; what is stacked has one axis more outside."""
    inner = closed_jaxpr(eqn.params["jaxpr"]).jaxpr
    carried = sum(map(_same_rank, eqn.outvars, inner.outvars))
    return sum(map(_same_rank, eqn.invars, inner.invars)) - carried, carried


def _same_rank(outer: Any, inner: Any) -> bool:
    return outer.aval.ndim == inner.aval.ndim


def _either(sets: UnionFind, values: Sequence[ChannelIds]) -> ChannelIds:
    """The ids of one array that may be any of `values`."""
    axes = sets.union_all(values, [axis.size for axis in values[0].axes])
    covered = all(sets.covers(v, axes) for v in values)
    return ChannelIds(
        axes, frozenset().union(*(v.weight for v in values)) if covered else frozenset()
    )


def _settled(a: ChannelIds, b: ChannelIds) -> bool:
    """Whether the same axes are free: of ids themselves, only ever more are united."""
    return list(map(is_free, a.axes)) == list(map(is_free, b.axes)) and a.weight == b.weight
