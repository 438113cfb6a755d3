"""Detects a network in training mode, which computes statistics of the batch.

A batch norm in training normalizes by the statistics of the batch, and mixes them into running ones
that a later evaluation uses. A program that returns no running statistics does that in vain.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from pruning.channels._coupling.groups import describe
from pruning.channels._program.interpret import closed_jaxpr, is_literal, live_program, trace_apply


def check_evaluation(apply: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> None:
    """Raise if `params` holds running statistics that only unreturned values depend on."""
    program, _ = trace_apply(apply, params, inputs)
    paths, count = describe(params).paths, len(jax.tree.leaves(params))
    needed = {v for eqn in live_program(program).eqns for v in eqn.outvars}
    activations = set(program.jaxpr.invars[count:])
    lost = _unneeded_sums(program, program.jaxpr.invars[:count], activations, needed)
    if lost:
        found = ", ".join(paths[i] for i in sorted(lost))
        raise ValueError(
            "apply must be the evaluation of a network, such as that of nnx.view(model, "
            f"use_running_average=True); this one computes statistics from the batch, and {found} "
            "go into nothing that it returns"
        )


def _unneeded_sums(
    program: Any, parameters: Sequence[Any], activations: set[Any], needed: set[Any]
) -> set[int]:
    """The parameters that are read only by sums with activations that no output needs."""
    # For values computed from parameters only: which parameters.
    sources = {v: {i} for i, v in enumerate(parameters)}
    mixed, read = set(), set()
    for eqn in closed_jaxpr(program).jaxpr.eqns:
        variables = [v for v in eqn.invars if not is_literal(v)]
        found = set().union(*(sources.get(v, ()) for v in variables))
        active = any(v in activations for v in variables)
        if not needed.isdisjoint(eqn.outvars):
            read |= found
        elif active and found:
            mixed |= found
        if active:
            activations |= set(eqn.outvars)
        elif found:
            sources |= dict.fromkeys(eqn.outvars, found)
    return mixed - read
