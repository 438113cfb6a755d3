"""Traces models to programs, and interprets the programs."""

from collections.abc import Callable, Sequence
from typing import TypeGuard, TypeVar

from flax import linen, nnx
from jax.extend.core import Literal
from jax.interpreters.partial_eval import dce_jaxpr

from jaxnorm.internal import check_call, check_function
from pruning._arguments import quote
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    Variable,
    call_of,
    trace,
)

T = TypeVar("T")


def trace_apply(apply: Apply, params: Tree, inputs: Sequence[Tree]) -> tuple[Program, Tree]:
    """The traced program of `apply(params, *inputs)`, and the shapes of the result.

    The arguments of the program are the leaves of `params` and then of `inputs`.
    """
    check_apply(apply)
    like = f"params and the inputs (here {len(inputs)})"
    check_call(apply, "apply", "lambda params, x: ...", like, params, *inputs)
    try:
        return trace(apply, params, *inputs)
    except Exception as error:
        raise ValueError(
            "apply(params, *inputs) must be traceable at these arguments (flax.nnx: see "
            "pruning.nnx.prune; flax.linen: params are all variables; bind flags like train=False "
            f"by functools.partial); got {quote(error)}"
        ) from error


def check_apply(apply: Apply) -> None:
    """Raise `TypeError` unless `apply` is a function; a module of Flax is not accepted."""
    if isinstance(apply, nnx.Module):
        raise TypeError(
            "apply must be a function of params and inputs; got a flax.nnx model: use "
            "pruning.nnx.prune(model, *inputs), or get both from pruning.nnx.evaluation(model)"
        )
    if isinstance(apply, linen.Module):
        raise TypeError(
            f"apply must be a function of params and inputs; got {type(apply).__name__}, a "
            "flax.linen module: pass its method apply, with all of its variables as params"
        )
    check_function(apply, "apply", "lambda params, x: ...")


def interpret(
    program: Program,
    values: Sequence[T],
    constant: Callable[[Leaf], T],
    step: Callable[[Equation, list[T]], Sequence[T]],
    *,
    enter_calls: bool = True,
) -> list[T]:
    """The results of `program`, which is evaluated by two functions that the caller passes.

    `constant(array)` returns the value of a constant, and `step(eqn, operands)` returns the results
    of an equation. By default, the interpreter evaluates the equations inside calls one by one. If
    `enter_calls` is false, `step` gets each call as one equation. After the last equation that
    reads a value, the interpreter deletes the value.
    """
    jaxpr = program.jaxpr
    readers = {v: eqn for eqn in jaxpr.eqns for v in eqn.invars if not is_literal(v)}
    readers |= dict.fromkeys(v for v in jaxpr.outvars if not is_literal(v))
    env: dict[Variable, T] = dict(zip(jaxpr.constvars, map(constant, program.consts), strict=True))
    env |= dict(zip(jaxpr.invars, values, strict=True))

    def read(variable: Variable) -> T:
        return constant(variable.val) if is_literal(variable) else env[variable]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if enter_calls and (call := call_of(eqn)) is not None:
            results = interpret(call.program, operands, constant, step)
        else:
            results = step(eqn, operands)
        pairs = zip(eqn.outvars, results, strict=True)
        env |= {variable: value for variable, value in pairs if variable in readers}
        for variable in {v for v in eqn.invars if not is_literal(v) and readers[v] is eqn}:
            del env[variable]
    return [read(v) for v in jaxpr.outvars]


def live_program(program: Program) -> Program:
    """The `program` without the equations on which no result depends."""
    needed = [True] * len(program.jaxpr.outvars)
    jaxpr, _ = dce_jaxpr(program.jaxpr, needed, instantiate=True)
    return Program(jaxpr, program.consts)


def is_literal(variable: Variable) -> TypeGuard[Literal]:
    return isinstance(variable, Literal)
