"""Traced programs, and an interpreter for them."""

from collections.abc import Callable, Sequence
from typing import TypeGuard, TypeVar

from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from pruning._arguments import quote
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    Variable,
    program_of,
    trace,
)

T = TypeVar("T")


def trace_apply(apply: Apply, params: Tree, inputs: Sequence[Tree]) -> tuple[ClosedJaxpr, Tree]:
    """The program of `apply(params, *inputs)` as a function of leaves in order, and its result."""
    try:
        return trace(apply, params, *inputs)
    except Exception as error:
        raise ValueError(
            "apply must be traceable at these params and inputs (for a flax.nnx model see "
            f"pruning.nnx.prune); got {quote(error)}"
        ) from error


def closed_jaxpr(program: Program) -> ClosedJaxpr:
    """`program` as a closed jaxpr."""
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def interpret(
    program: Program,
    values: Sequence[T],
    constant: Callable[[Leaf], T],
    step: Callable[[Equation, list[T]], Sequence[T]],
    *,
    enter: Callable[[Equation], Program | None] = program_of,
) -> list[T]:
    """The results of `program`, evaluated by the functions of the caller.

    `constant(array)` returns the value of a constant, and `step(eqn, operands)` returns the results
    of an equation. The interpreter evaluates the equations inside calls one by one. `step` gets a
    whole call only if `enter` returns None for the call. A value is released after its last reader.
    """
    closed = closed_jaxpr(program)
    readers = {v: eqn for eqn in closed.jaxpr.eqns for v in eqn.invars if not is_literal(v)}
    readers |= dict.fromkeys(v for v in closed.jaxpr.outvars if not is_literal(v))
    env: dict[Variable, T] = dict(
        zip(closed.jaxpr.constvars, map(constant, closed.consts), strict=True)
    )
    env |= dict(zip(closed.jaxpr.invars, values, strict=True))

    def run(inner: Program, operands: Sequence[T]) -> list[T]:
        return interpret(inner, operands, constant, step, enter=enter)

    def read(variable: Variable) -> T:
        return constant(variable.val) if is_literal(variable) else env[variable]

    for eqn in closed.jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        inner = enter(eqn)
        results = step(eqn, operands) if inner is None else run(inner, operands)
        pairs = zip(eqn.outvars, results, strict=True)
        env |= {variable: value for variable, value in pairs if variable in readers}
        for variable in {v for v in eqn.invars if not is_literal(v) and readers[v] is eqn}:
            del env[variable]
    return [read(v) for v in closed.jaxpr.outvars]


def live_program(program: ClosedJaxpr) -> ClosedJaxpr:
    """`program` without the equations that no result needs."""
    needed = [True] * len(program.jaxpr.outvars)
    jaxpr, _ = dce_jaxpr(program.jaxpr, needed, instantiate=True)
    return ClosedJaxpr(jaxpr, program.consts)


def enter_none(eqn: Equation) -> None:
    """Enter no call; used by a step that handles all calls itself."""


def is_literal(variable: Variable) -> TypeGuard[Literal]:
    return isinstance(variable, Literal)
