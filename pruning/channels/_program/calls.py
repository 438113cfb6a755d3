"""Finds the programs that an equation calls, in the old and the new format of JAX's calls.

A call is an equation that only runs another program, such as `jit`, `jax.checkpoint` or a function
with a custom derivative rule. The called program is a parameter of the equation. With the flags
`jax_custom_jvp3`, `jax_custom_vjp3` and `jax_remat3`, JAX 0.12 writes `jax.checkpoint` and custom
derivative rules as a `HiPrim`. The method `expand` of a `HiPrim` returns the program.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import current_name_stack, user_context

Equation = JaxprEqn
Program = ClosedJaxpr
Variable = Var | Literal
Options = Mapping[str, Any]
"""The parameters of an equation, such as the axes of a sum."""
Leaf = Any
"""An array of JAX or NumPy, a traced array, a Python number, or a `jax.ShapeDtypeStruct`."""
Tree = Any
"""A pytree of JAX, such as nested dictionaries of arrays."""
Apply = Callable[..., Tree]
"""A network: a function whose arguments are a tree of parameters and the inputs."""

KINDS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "eval_jaxpr"), "jit"),
    **dict.fromkeys(("checkpoint", "remat2"), "checkpoint"),
    "custom_jvp_call": "custom_jvp",
    "custom_vjp_call": "custom_vjp",
}
HI_KINDS = {"RematTraced": "checkpoint", "CustomJVPTraced": "custom_jvp"}
"""The kind of call for each class of `HiPrim`; the kind of all other classes is `custom_vjp`."""


class Call(NamedTuple):
    """The program that an equation calls.

    `kind` is `jit`, `checkpoint`, `custom_jvp` or `custom_vjp`. For the kind `checkpoint`,
    `options` are the options of `jax.checkpoint`. For other kinds, `options` is empty.
    """

    program: Program
    kind: str
    options: Options


def call_of(eqn: Equation) -> Call | None:
    """The call that an equation makes, or None if the equation is not a call."""
    name, params = eqn.primitive.name, eqn.params
    if (kind := KINDS.get(name)) is not None:
        keys = ("jaxpr", "call_jaxpr", "fun_jaxpr")
        program = _close(next(params[key] for key in keys if key in params))
    elif name == "call_hi_primitive" and (program := _expand(params["_prim"])) is not None:
        params = params["_prim"].params
        kind = HI_KINDS.get(type(eqn.params["_prim"]).__name__, "custom_vjp")
    else:
        return None
    names = ("policy", "prevent_cse") if kind == "checkpoint" else ()
    return Call(program, kind, {name: params[name] for name in names if name in params})


def subprograms(eqn: Equation) -> list[Program]:
    """The programs inside an equation, such as branches of a condition or the body of a loop."""
    if (call := call_of(eqn)) is not None:
        return [call.program]
    leaves = jax.tree.leaves(eqn.params, is_leaf=lambda x: isinstance(x, Program | Jaxpr))
    return [_close(x) for x in leaves if isinstance(x, Program | Jaxpr)]


def _close(program: Program | Jaxpr) -> Program:
    return program if isinstance(program, Program) else Program(program, ())


_EXPANDED: WeakKeyDictionary[Any, Program | None] = WeakKeyDictionary()


def _expand(primitive: Any) -> Program | None:
    """The program of a `HiPrim`; None if `expand` is missing or an operand is not an array.

    The program is cached, so a primitive always has the same program object.
    """
    if primitive not in _EXPANDED:

        def flat(*arrays: Leaf) -> list[Leaf]:
            operands = jax.tree.unflatten(primitive.in_tree, arrays)
            return jax.tree.leaves(primitive.expand(*operands))

        try:
            _EXPANDED[primitive] = jax.make_jaxpr(flat)(*primitive.in_avals_flat)
        except (NotImplementedError, TypeError):  # the primitive's `expand` is missing or fails
            _EXPANDED[primitive] = None
    return _EXPANDED[primitive]


def evaluate_equation(
    eqn: Equation, arrays: Sequence[Leaf], params: Options | None = None
) -> list[Leaf]:
    """The results of an equation for given operands.

    If `params` are given, they replace the parameters of the equation. If the evaluation is traced,
    the new equation has the source line of `eqn`.
    """
    params = eqn.params if params is None else params
    if params.get("sharding") is not None:
        meshes = [jax.sharding.get_abstract_mesh(), *(jax.typeof(x).sharding.mesh for x in arrays)]
        if all(mesh.empty for mesh in meshes):  # as for zeros, whose devices JAX would not know
            params = {**params, "sharding": None}
    source = eqn.source_info
    with user_context(source.traceback, name_stack=current_name_stack() + source.name_stack):
        results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(params))
    return list(results) if eqn.primitive.multiple_results else [results]


def trace_tangents(eqn: Equation) -> Program:
    """A program that maps operands and their tangents to results and their tangents.

    Only floating-point operands and results have tangents. `jax.jvp` traces the equation and
    follows `jax.custom_jvp` rules.
    """
    operands = [v.aval for v in eqn.invars]

    def function(
        primals: Sequence[Leaf], tangents: Sequence[Leaf]
    ) -> tuple[list[Leaf], list[Leaf]]:
        every = of_all(primals, tangents)
        results, found = jax.jvp(lambda *x: evaluate_equation(eqn, x), primals, every)
        return results, [t for y, t in zip(results, found, strict=True) if is_floating(y)]

    return jax.make_jaxpr(function)(operands, list(filter(is_floating, operands)))


def trace_cotangents(eqn: Equation) -> tuple[Program, Program]:
    """The forward and the backward program of `jax.vjp` of an equation.

    The two programs follow a `jax.custom_vjp` rule of the equation. The forward program computes
    the results and the residuals. From the residuals and the cotangents of the floating-point
    results, the backward program computes the cotangents of the floating-point operands.
    """
    operands, results = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))

    def vjp(*arrays: Leaf) -> Tree:
        return jax.vjp(lambda *x: evaluate_equation(eqn, x), *arrays)

    forward, (_, transpose) = jax.make_jaxpr(vjp, return_shape=True)(*operands)
    structure, residuals = jax.tree.structure(transpose), forward.out_avals[len(results) :]

    def backward(residuals: Sequence[Leaf], cotangents: Sequence[Leaf]) -> list[Leaf]:
        found = jax.tree.unflatten(structure, residuals)(of_all(results, cotangents))
        return [t for x, t in zip(operands, found, strict=True) if is_floating(x)]

    floating = list(filter(is_floating, results))
    return forward, jax.make_jaxpr(backward)(residuals, floating)


def of_all(primals: Sequence[Leaf], tangents: Sequence[Leaf]) -> list[Leaf]:
    """The tangents of all `primals`, with zeros of dtype `float0` for integers and Booleans."""
    left = iter(tangents)
    zeros = (np.zeros(x.shape, jax.dtypes.float0) for x in primals)
    return [next(left) if is_floating(x) else zero for x, zero in zip(primals, zeros, strict=True)]


def shape_of(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def makes_reals(eqn: Equation) -> bool:
    """Whether the results of an equation are real floating-point numbers."""
    avals: list[Any] = [v.aval for v in eqn.outvars]
    return all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)


def is_floating(x: Leaf) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def trace(function: Apply, *arguments: Tree) -> tuple[Program, Tree]:
    """The traced program of a function, and the shapes of the function's result.

    The function is traced without the flag `jax_scan3`. With the flag `jax_scan3`, scans write into
    references, which JAX cannot yet differentiate.
    """
    scan3 = getattr(jax.config, "jax_scan3", False)
    if not scan3:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    jax.config.update("jax_scan3", False)
    try:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    finally:
        jax.config.update("jax_scan3", scan3)
