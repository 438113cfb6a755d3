"""Detects that a network is in training mode and uses statistics of the batch.

In training mode, a batch norm normalizes by the statistics of the batch, and updates running
statistics. If a program computes new running statistics but does not return them, the network is in
training mode by mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from pruning.channels._coupling.groups import describe
from pruning.channels._program.calls import Apply, Equation, Program, Tree, shape_of
from pruning.channels._program.interpret import interpret, trace_apply


def check_evaluation(apply: Apply, params: Tree, inputs: Sequence[Tree]) -> None:
    """Raise if the program updates parameters by statistics of the batch, but drops the result."""
    program, _ = trace_apply(apply, params, inputs)
    paths = describe(params).paths
    lost = _lost_averages(program, len(paths))
    if lost:
        names = [paths[i] for i in sorted(lost)]
        found = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        raise ValueError(
            "apply must run the network in evaluation mode, as nnx.view(model, "
            f"use_running_average=True) does; this apply updates {found} by statistics of the "
            "batch, and does not return the result"
        )


@dataclass(eq=False)
class _Value:
    """Facts about an array of the program.

    If the array does not depend on inputs, `parameters` are the parameters that have the size of
    the array and from which the array is computed. `is_active` says that the array depends on
    inputs. `is_reduced` says that the array is computed elementwise from reductions of activations,
    such as the mean of a batch, and possibly from parameters.
    """

    size: int
    parameters: frozenset[int] = frozenset()
    is_active: bool = False
    is_reduced: bool = False


def _lost_averages(program: Program, count: int) -> set[int]:
    """The parameters that are added to statistics of the batch in sums that affect no result.

    The parameters are the first `count` arguments of the program.
    """
    shapes = [shape_of(v) for v in program.jaxpr.invars]
    parameters = [_Value(prod(shape), frozenset({i})) for i, shape in enumerate(shapes[:count])]
    # An input without axes, such as a momentum, is not an activation.
    inputs = [_Value(prod(shape), is_active=shape != ()) for shape in shapes[count:]]
    steps: list[tuple[Equation, list[_Value], list[_Value]]] = []

    def step(eqn: Equation, operands: list[_Value]) -> list[_Value]:
        results = [_result(eqn, operands, prod(shape_of(v))) for v in eqn.outvars]
        steps.append((eqn, operands, results))
        return results

    needed = set(
        interpret(program, parameters + inputs, lambda array: _Value(np.size(array)), step)
    )
    lost: set[int] = set()
    for eqn, operands, results in reversed(steps):
        if not needed.isdisjoint(results):
            needed |= set(operands)
        elif eqn.primitive.name in ("add", "sub") and results[0].is_reduced:
            lost |= frozenset().union(*(value.parameters for value in operands))
    return lost


def _result(eqn: Equation, operands: Sequence[_Value], size: int) -> _Value:
    active = [value for value in operands if value.is_active]
    if not active:
        same = (value.parameters for value in operands if value.size == size)
        return _Value(size, frozenset().union(*same))
    if eqn.primitive.name.startswith("reduce_") and eqn.params.get("axes"):
        return _Value(size, is_active=True, is_reduced=True)
    is_elementwise = all(value.size in (1, size) for value in operands)
    is_reduced = any(value.is_reduced for value in active) and all(
        value.is_reduced or value.size == 1 for value in active
    )
    return _Value(size, is_active=True, is_reduced=is_elementwise and is_reduced)
