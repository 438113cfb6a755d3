"""Traced programs, and how to interpret one."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jax.extend.core import ClosedJaxpr, Literal

from pruning._arguments import quoted
from pruning.channels._program.calls import trace

T = TypeVar("T")


def traced(
    apply: Callable[..., Any], params: Any, inputs: Sequence[Any]
) -> tuple[ClosedJaxpr, Any]:
    """The program of `apply(params, *inputs)`, its leaves in order as arguments, and its result."""
    try:
        return trace(apply, params, *inputs)
    except Exception as error:
        raise ValueError(
            "apply must be traceable at these params and inputs, and of an nnx module a function "
            f"of its state: see nnx.split; got {quoted(error)}"
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
    """The results of `program`, by `constant(array)` and, of an equation, `step(eqn, operands)`.

    No value outlives its last reader.
    """
    closed = closed_jaxpr(program)
    readers = {v: eqn for eqn in closed.jaxpr.eqns for v in eqn.invars if not is_literal(v)}
    readers |= dict.fromkeys(v for v in closed.jaxpr.outvars if not is_literal(v))
    env: dict[Any, T] = dict(zip(closed.jaxpr.constvars, map(constant, closed.consts), strict=True))
    env |= dict(zip(closed.jaxpr.invars, values, strict=True))

    def read(variable: Any) -> T:
        return constant(variable.val) if is_literal(variable) else env[variable]

    for eqn in closed.jaxpr.eqns:
        results = step(eqn, [read(v) for v in eqn.invars])
        pairs = zip(eqn.outvars, results, strict=True)
        env |= {variable: value for variable, value in pairs if variable in readers}
        for variable in {v for v in eqn.invars if not is_literal(v) and readers[v] is eqn}:
            del env[variable]
    return [read(v) for v in closed.jaxpr.outvars]


def is_literal(variable: Any) -> bool:
    return isinstance(variable, Literal)
