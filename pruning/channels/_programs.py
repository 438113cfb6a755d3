"""A traced program evaluated on labels of channels instead of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from pruning.channels._ids import FREE, Joins, Labels, fixed
from pruning.channels._rules import RULES, unknown

CALLS = [
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "checkpoint",
    "remat2",
]


def evaluate(program: Any, joins: Joins, values: Sequence[Labels]) -> list[Labels]:
    """The labels of the results of `program`, a closed jaxpr or one without constants."""
    jaxpr = getattr(program, "jaxpr", program)
    constants = [constant(np.shape(c)) for c in getattr(program, "consts", ())]
    known = dict(zip(jaxpr.constvars, constants, strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))

    def read(variable: Any) -> Labels:
        if isinstance(variable, Literal):
            return constant(np.shape(variable.val))
        return known[variable]

    for eqn in jaxpr.eqns:
        found = step(eqn, joins, [read(v) for v in eqn.invars])
        known |= dict(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def step(eqn: Any, joins: Joins, values: Sequence[Labels]) -> list[Labels]:
    """The labels of the results of one equation; calls, branches and loops are entered."""
    name = eqn.primitive.name
    if (inner := called(eqn)) is not None:
        return evaluate(inner, joins, values)
    if name == "cond":
        return branches(eqn, joins, values)
    if name == "scan":
        return scan(eqn, joins, values)
    return RULES.get(name, unknown)(eqn, joins, *values)


def called(eqn: Any) -> Any:
    """The program that an equation does nothing but call, if it is such a call."""
    if eqn.primitive.name not in CALLS:
        return None
    return next(eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params)


def branches(eqn: Any, joins: Joins, values: Sequence[Labels]) -> list[Labels]:
    """Every branch must give results of the same channels."""
    _, *operands = values
    found = [evaluate(branch, joins, operands) for branch in eqn.params["branches"]]
    return [agreed(joins, results) for results in zip(*found, strict=True)]


def scan(eqn: Any, joins: Joins, values: Sequence[Labels]) -> list[Labels]:
    """One step stands for all: what is stacked keeps its first axis, what is carried its labels."""
    body = eqn.params["jaxpr"]
    inner = getattr(body, "jaxpr", body)
    # Constants, then carries, then what is stacked: the last have one axis more outside.
    carried = sum(map(_alike, eqn.outvars, inner.outvars))
    whole = sum(map(_alike, eqn.invars, inner.invars))
    constants, carry = list(values[: whole - carried]), list(values[whole - carried : whole])
    stacked = []
    for value in values[whole:]:
        steps, *axes = value.axes
        joins.join(steps, fixed(steps.size))  # a number of layers, not of channels
        stacked.append(Labels(tuple(axes), value.weight))
    while True:
        found = evaluate(body, joins, [*constants, *carry, *stacked])
        after = [agreed(joins, pair) for pair in zip(carry, found[:carried], strict=True)]
        if all(map(same, carry, after)):
            break
        carry = after
    length = fixed(eqn.params["length"])
    return after + [Labels((length, *value.axes), value.weight) for value in found[carried:]]


def _alike(outer: Any, inner: Any) -> bool:
    return outer.aval.ndim == inner.aval.ndim


def agreed(joins: Joins, values: Sequence[Labels]) -> Labels:
    """The labels of one array that may be any of `values`."""
    axes = joins.join_all(values, [axis.size for axis in values[0].axes])
    return Labels(axes, all(v.weight for v in values))


def same(a: Labels, b: Labels) -> bool:
    """Whether the same axes are free: labels themselves only ever join."""
    free = [tuple(bool((x == FREE).all()) for x in v.axes) for v in (a, b)]
    return free[0] == free[1] and a.weight == b.weight


def constant(shape: Sequence[int]) -> Labels:
    """A constant of the program: its size is written there, and stays."""
    return Labels(tuple(fixed(n) for n in shape))
