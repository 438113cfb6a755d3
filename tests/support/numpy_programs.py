"""Evaluates programs of JAX by NumPy, so that small networks run without compilation."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from pruning.channels._coupling.control_flow import scan_parts
from tests.support.numpy_windows import dynamic_slice, gather, scatter

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def evaluated(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function(*arguments)`.

    JAX runs the primitives that are not in `TABLE` or `SEVERAL`, or whose entry returns None.
    """
    program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    with np.errstate(all="ignore"):
        outputs = list(_run(program, map(np.asarray, jax.tree.leaves(arguments))))
    return jax.tree.unflatten(jax.tree.structure(result), outputs)


def output_of(model: Any, x: Any, call: Callable[..., Any] = lambda model, x: model(x)) -> Any:
    """The result of `call(model, x)` for a model of NNX, which does not change."""
    graph, state = nnx.split(model)
    return evaluated(lambda state, x: call(nnx.merge(graph, state), x), state, x)


def _run(program: ClosedJaxpr | Jaxpr, arguments: Any, constants: Any = ()) -> Iterator[Any]:
    if isinstance(program, ClosedJaxpr):
        program, constants = program.jaxpr, program.consts
    env = dict(zip(program.constvars, map(_array, constants), strict=True))
    env |= dict(zip(program.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        if isinstance(variable, Literal):
            return np.asarray(variable.val, variable.aval.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        return env[variable]

    for eqn in program.eqns:
        results = _step(eqn, [read(v) for v in eqn.invars])
        env |= dict(zip(eqn.outvars, results, strict=True))
    return map(read, program.outvars)


def _array(constant: Any) -> Any:
    is_key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
    return constant if is_key else np.asarray(constant)


def _step(eqn: Any, values: list[Any]) -> Any:
    name, params = eqn.primitive.name, eqn.params
    inner = next((params[k] for k in ("jaxpr", "call_jaxpr") if k in params), None)
    if name == "scan":
        return _scan(eqn, values)
    if name == "while":
        return _while(params, values)
    if name == "cond":
        index = np.clip(int(values[0]), 0, len(params["branches"]) - 1)
        return _run(params["branches"][index], values[1:])
    if inner is not None:
        return _run(inner, values)
    if name in SEVERAL and (results := SEVERAL[name](params, *values)) is not None:
        return results
    if name in TABLE and (result := TABLE[name](params, *values)) is not None:
        return [result]
    results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
    return results if eqn.primitive.multiple_results else [results]


def _scan(eqn: Any, values: list[Any]) -> list[Any]:
    params, (count, carried) = eqn.params, scan_parts(eqn)
    body, constants, rest = params["jaxpr"], values[:count], values[count:]
    carry, stacked, outputs = rest[:carried], rest[carried:], []
    steps = range(params["length"])
    for i in reversed(steps) if params["reverse"] else steps:
        results = list(_run(body, [*constants, *carry, *(x[i] for x in stacked)]))
        carry = results[:carried]
        outputs.append(results[carried:])
    ordered = outputs[::-1] if params["reverse"] else outputs
    return [*carry, *(np.stack(parts) for parts in zip(*ordered, strict=True))]


def _while(params: dict[str, Any], values: list[Any]) -> list[Any]:
    tested, repeated = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body = values[:tested], values[tested : tested + repeated]
    carry = values[tested + repeated :]
    while next(_run(params["cond_jaxpr"], [*of_test, *carry])):
        carry = list(_run(params["body_jaxpr"], [*of_body, *carry]))
    return carry


def _dot_general(params: dict[str, Any], a: Any, b: Any) -> Any:
    (contract_a, contract_b), (batch_a, batch_b) = params["dimension_numbers"]
    of_a, of_b = list(LETTERS[: a.ndim]), list(LETTERS[a.ndim : a.ndim + b.ndim])
    for i, j in zip((*contract_a, *batch_a), (*contract_b, *batch_b), strict=True):
        of_b[j] = of_a[i]
    batch = [of_a[i] for i in batch_a]
    rest_a = [s for i, s in enumerate(of_a) if i not in (*contract_a, *batch_a)]
    rest_b = [s for j, s in enumerate(of_b) if j not in (*contract_b, *batch_b)]
    result = "".join([*batch, *rest_a, *rest_b])
    return np.einsum(f"{''.join(of_a)},{''.join(of_b)}->{result}", a, b)


def _conv(params: dict[str, Any], x: Any, kernel: Any) -> Any:
    """A convolution, as a sum of one matrix product for each position of the window."""
    if params["batch_group_count"] != 1 or np.min(params["padding"]) < 0:
        return None
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    x, kernel = x.transpose(numbers.lhs_spec), kernel.transpose(numbers.rhs_spec)
    x = _dilated(x, params["lhs_dilation"])
    x = np.pad(x, [(0, 0), (0, 0), *params["padding"]])
    strides, spread = params["window_strides"], params["rhs_dilation"]
    window = [(k - 1) * by + 1 for k, by in zip(kernel.shape[2:], spread, strict=True)]
    sizes = zip(x.shape[2:], window, strides, strict=True)
    counts = [(n - w) // stride + 1 for n, w, stride in sizes]
    x = x.reshape(len(x), groups, -1, *x.shape[2:])
    kernel = kernel.reshape(groups, -1, *kernel.shape[1:])
    total = 0.0
    for place in product(*map(range, kernel.shape[3:])):
        starts = [i * by for i, by in zip(place, spread, strict=True)]
        bounds = zip(starts, counts, strides, strict=True)
        seen = x[(..., *(slice(s, s + (n - 1) * by + 1, by) for s, n, by in bounds))]
        total = total + np.einsum("bgi...,goi->bgo...", seen, kernel[(..., *place)])
    result = np.reshape(total, (len(x), -1, *counts))
    return result.transpose(np.argsort(numbers.out_spec))


def _dilated(x: Any, by: Sequence[int]) -> Any:
    sizes = [(n - 1) * k + 1 for n, k in zip(x.shape[2:], by, strict=True)]
    result = np.zeros((*x.shape[:2], *sizes), x.dtype)
    result[(..., *(slice(None, None, k) for k in by))] = x
    return result


def _broadcast(params: dict[str, Any], x: Any) -> Any:
    sides = [1] * len(params["shape"])
    for k, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        sides[k] = n
    return np.broadcast_to(x.reshape(sides), params["shape"])


def _pad(params: dict[str, Any], x: Any, value: Any) -> Any:
    config = np.array(params["padding_config"])
    if config.min() < 0 or config[:, 2].any():
        return None
    return np.pad(x, config[:, :2], constant_values=value)


def _slice(params: dict[str, Any], x: Any) -> Any:
    strides = params["strides"] or [1] * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*bound) for bound in bounds)]


def _iota(params: dict[str, Any]) -> Any:
    shape, axis = params["shape"], params["dimension"]
    sides = [n if k == axis else 1 for k, n in enumerate(shape)]
    line = np.arange(shape[axis], dtype=params["dtype"]).reshape(sides)
    return np.broadcast_to(line, shape)


def _split(params: dict[str, Any], x: Any) -> list[Any]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _div(params: dict[str, Any], a: Any, b: Any) -> Any:
    return a / b if a.dtype.kind in "fc" else None


def _sort(params: dict[str, Any], *values: Any) -> Any:
    if params["num_keys"] != 1:
        return None
    order = np.argsort(values[0], params["dimension"], kind="stable")
    return [np.take_along_axis(x, order, params["dimension"]) for x in values]


def _accumulated(function: np.ufunc) -> Callable[..., Any]:
    def accumulated(params: dict[str, Any], x: Any) -> Any:
        axis, ahead = params["axis"], slice(None, None, -1 if params["reverse"] else 1)
        order = (*[slice(None)] * axis, ahead)
        return function.accumulate(x[order], axis)[order]

    return accumulated


def _bitcast(params: dict[str, Any], x: Any) -> Any:
    same = np.dtype(params["new_dtype"]).itemsize == x.dtype.itemsize
    return x.view(params["new_dtype"]) if same else None


def _select(params: dict[str, Any], which: Any, *cases: Any) -> Any:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else None


def _reduction(reduce: Any) -> Callable[..., Any]:
    return lambda params, x: reduce(x, tuple(params["axes"]))


def _argument(position: Any) -> Callable[..., Any]:
    return lambda params, x: position(x, params["axes"][0]).astype(params["index_dtype"])


def _elementwise(function: Any) -> Callable[..., Any]:
    return lambda params, *values: function(*values)


_UFUNCS = {"max": np.maximum, "min": np.minimum, "mul": np.multiply, "neg": np.negative}
_UFUNCS |= {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
_UFUNCS |= {"eq": np.equal, "ne": np.not_equal, "sub": np.subtract, "pow": np.power}
_UFUNCS |= {"add_any": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "rem": np.fmod}
_UFUNCS |= {"not": np.invert, "xor": np.bitwise_xor, "is_finite": np.isfinite}
_UFUNCS |= {"acos": np.arccos, "atan2": np.arctan2, "shift_right_arithmetic": np.right_shift}
_UFUNCS |= {"digamma": scipy.special.digamma}
_UFUNCS |= {name: getattr(scipy.special, name) for name in ("erf", "erfc")}
_SAME = "add tanh square exp abs sqrt cos sin log sign floor log1p expm1 real cbrt"
SEVERAL: dict[str, Callable[..., Any]] = {
    "optimization_barrier": lambda params, *xs: list(xs),
    "sort": _sort,
    "split": _split,
}
TABLE: dict[str, Callable[..., Any]] = {
    **{name: _elementwise(function) for name, function in _UFUNCS.items()},
    **{name: _elementwise(getattr(np, name)) for name in _SAME.split()},
    **dict.fromkeys(("stop_gradient", "copy", "copy_p"), lambda params, x: x),
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_and": _reduction(np.all),
    "reduce_or": _reduction(np.any),
    "argmax": _argument(np.argmax),
    "argmin": _argument(np.argmin),
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda params, low, x, high: np.clip(x, low, high),
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
    "conv_general_dilated": _conv,
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "cummax": _accumulated(np.maximum),
    "cummin": _accumulated(np.minimum),
    "cumsum": _accumulated(np.add),
    "div": _div,
    "dot_general": _dot_general,
    "dynamic_slice": dynamic_slice,
    "gather": gather,
    "integer_pow": lambda params, x: x ** float(params["y"]),
    "iota": _iota,
    "logistic": lambda params, x: 1 / (1 + np.exp(-x)),
    "pad": _pad,
    "reshape": lambda params, x: (
        np.transpose(x, params["dimensions"]).reshape(params["new_sizes"])
        if params["dimensions"] is not None
        else x.reshape(params["new_sizes"])
    ),
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "round": lambda params, x: np.round(x),
    "scatter": scatter(lambda old, new: new),
    "scatter-add": scatter(np.add),
    "rsqrt": lambda params, x: 1 / np.sqrt(x),
    "select_n": _select,
    "slice": _slice,
    "squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "stack": lambda params, *xs: np.stack(xs, params["axis"]),
    "tile": lambda params, x: np.tile(x, params["reps"]),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
}
