"""What each primitive of a traced program does to ids of channels.

A rule is called as `rule(eqn, sets, *values)` with the `ChannelIds` of the operands and returns
those of the results. A shape that the program spells out, such as the bounds of a slice, is one of
the large network: `_sizes` adapts it to the channels that are left, and `_comparison` compares.

    primitive                    what it does to an axis
    elementwise (add, mul, ...)  unites the ids of all operands, index by index; constants have none
    reduce_*                     keeps the other axes; pins the axis that is reduced, but for sums
                                 of what is zero, or the same, where channels are removed
    psum, pmax, ppermute, ...    keep all axes: they run over the devices of a mesh
    cumsum, sort, ...            keeps the other axes; pins the axis along which they run
    reduce_window*               keeps axes whose window is one index; pins the others
    dot_general                  unites contracted and batch axes; keeps all others; pins what is
                                 contracted unless a factor is zero where channels are removed
    conv_general_dilated         unites the kernel's inputs with the features; returns its outputs
    reshape                      folds ids and unfolds them, united along all axes but one
    transpose, squeeze, rev      move, drop or reverse axes with their ids
    broadcast_in_dim             new axes are free
    concatenate, pad, tile       put ids end to end; pin what is added beside channels
    stack, unstack               unite the ids of all operands; pin the axis that is new, or goes
    slice, split                 take ids; of every nth, those of n neighbours are united
    dynamic_slice                keeps axes that are taken whole; pins the others
    dynamic_update_slice         unites axes that are replaced whole; pins the others
    scatter*                     unites axes that are replaced whole; pins those that are indexed
    gather                       keeps axes that are taken whole; pins those that are indexed
    iota                         fixed along its dimension, free along the others: a constant
    random_bits                  fixed: a constant, drawn for the whole width
    bitcast_convert_type         keeps all axes between dtypes of one size
    any other                    pins all that goes in
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pruning.channels._coupling import shape_rules as shapes
from pruning.channels._coupling.channel_ids import (
    ChannelIds,
    UnionFind,
    Vector,
    Zero,
    fixed,
    is_free,
    together,
)
from pruning.channels._coupling.shape_rules import Results, shape_of, unknown

Rule = Callable[..., Results]
ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
    clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp
    exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne
    neg nextafter not or population_count pow real reduce_precision rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square
    stop_gradient sub tan tanh xor
"""
# Zero where one operand is; where all are.
PRODUCTS = {"and", "mul"}
QUOTIENTS = {"div", "rem"}
ZERO_AT_ZERO = """
    abs add add_any asin asinh atan atanh cbrt ceil complex conj convert_element_type copy copy_p
    cummax cummin cumprod cumsum erf erf_inv expm1 floor imag log1p max min neg or pmax
    pmin psum real reduce_max reduce_min reduce_precision reduce_prod reduce_sum reduce_window_max
    reduce_window_min reduce_window_sum round sign sin sinh sort sqrt square stop_gradient sub tan
    tanh xor
"""
POSITIVE = {"exp", "exp2", "logistic", "cosh"}
NONZERO = "abs convert_element_type copy div integer_pow mul neg pow rsqrt sqrt square"
# The operand at whose zero a value or a derivative is infinite.
SINGULAR = {"acosh": 0, "digamma": 0, "div": 1, "lgamma": 0, "log": 0, "pow": 0, "rem": 1}
SINGULAR |= {"rsqrt": 0, "sqrt": 0}
REDUCTIONS = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""
SUMS = {"psum", "reduce_sum"}
OVER_DEVICES = "pbroadcast pcast pmax pmin ppermute psum psum_invariant pvary"
WINDOWS = "reduce_window reduce_window_max reduce_window_min reduce_window_sum"
ALONG_AN_AXIS = "cumlogsumexp cummax cummin cumprod cumsum sort"


def elementwise_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    values = tuple(sets.tabled(values))
    axes, name = sets.union_all(values, shape_of(eqn.outvars[0])), eqn.primitive.name
    if _is_singular(eqn, values):
        value = values[SINGULAR.get(name, 0)]
        if not (_nonzero(value) or value.constant):
            sets.singular += [sets.required(value, axis) for axis in value.axes]
    positive = name in ("add", "max") and any((v.number or 0) > 0 for v in values)
    still = name in NONZERO.split() and all(map(_nonzero, values))
    number = values[0].number if name == "convert_element_type" else None
    nonzero = positive or still or name in POSITIVE
    zero, uniform = _zero(eqn, sets, axes, values), sets.uniform(values)
    return [ChannelIds(axes, zero, number, nonzero, uniform=uniform)]


def _is_singular(eqn: Any, values: Sequence[ChannelIds]) -> bool:
    """Whether a value or a derivative is infinite where an operand is zero: see `SINGULAR`."""
    power = _power(eqn, values)
    return eqn.primitive.name in SINGULAR if power is None else power < 1 and power != 0


def _power(eqn: Any, values: Sequence[ChannelIds]) -> int | float | None:
    """The exponent of a power, if it is a number."""
    if eqn.primitive.name == "integer_pow":
        return eqn.params["y"]
    return values[1].number if eqn.primitive.name == "pow" else None


def bitcast_rule(eqn: Any, sets: UnionFind, value: ChannelIds) -> Results:
    same = shape_of(eqn.invars[0]) == shape_of(eqn.outvars[0])
    return [ChannelIds(value.axes)] if same else unknown(eqn, sets, value)


def _nonzero(value: ChannelIds) -> bool:
    return value.nonzero or bool(value.number)


def _zero(eqn: Any, sets: UnionFind, axes: Sequence[Vector], values: Sequence[ChannelIds]) -> Zero:
    """The parameters that make an elementwise result zero at ids."""
    name = eqn.primitive.name
    if name in PRODUCTS:
        return sets.any_zero(values, axes)
    if name in QUOTIENTS:
        return sets.zero_at(values[0], axes)
    if name == "select_n":
        return sets.all_zero(values[1:], axes)
    if name in ("max", "min"):  # with a number that zero is beyond
        sign = 1 if name == "min" else -1
        values = [v for v in values if v.number is None or sign * v.number < 0]
    if (power := _power(eqn, values)) is not None:
        return sets.zero_at(values[0], axes) if power > 0 else None
    return sets.all_zero(values, axes) if name in ZERO_AT_ZERO.split() else None


def _zero_still(eqn: Any, value: ChannelIds) -> Zero:
    """The parameters that make a result zero, whose elements are made of those of one id."""
    return value.zero if eqn.primitive.name in ZERO_AT_ZERO.split() else None


def reduction_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    reduced, results = eqn.params["axes"], []
    for value in values:
        axes = tuple(axis for k, axis in enumerate(value.axes) if k not in reduced)
        for axis in (value.axes[k] for k in reduced):
            if not _summable(eqn, sets, value):
                sets.pin(axis)
                continue
            sets.zeroed.append(sets.required(value, axis))
            if not _is_weight(sets, value, axes):
                sets.report(axis, normed=True)
        results.append(ChannelIds(axes, _zero_still(eqn, value)))
    return results


def over_devices_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    """Element by element over the devices of a mesh, each of which has all channels.

    Of an axis that `jax.vmap` names, once it is batched, it is a reduction of the arrays.
    """
    axes = eqn.params.get("axes", ())
    if axes and all(isinstance(axis, int) for axis in axes):
        return reduction_rule(eqn, sets, *values)
    if any(isinstance(axis, int) for axis in axes):
        return unknown(eqn, sets, *values)
    same = eqn.primitive.name in ("pbroadcast", "pcast", "pvary")
    return [v if same else v._replace(number=None, nonzero=False) for v in values]


def _summable(eqn: Any, sets: UnionFind, value: ChannelIds) -> bool:
    """Whether a sum runs over what is zero or, along one axis, the same at removed channels."""
    if value.zero is not None:
        return eqn.primitive.name in SUMS
    summed = (value.axes[k] for k in eqn.params["axes"])
    once = sum(map(sets.removable, summed)) == 1
    return eqn.primitive.name == "reduce_sum" and value.uniform is not None and once


def _is_weight(sets: UnionFind, value: ChannelIds, others: Sequence[Vector]) -> bool:
    """Whether a sum runs over channels of a weight, a modulated one maybe, that are zero.

    A sum over the channels of an activation is a norm, and its divisor that of the whole width.
    """
    return value.zero is not None and (value.given or any(map(sets.removable, others)))


def along_an_axis_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    operands = [
        ChannelIds(tuple(sets.pin_others(v, lambda k: k != axis)), _zero_still(eqn, v))
        for v in values
    ]
    axes = sets.union_all(operands, shape_of(eqn.outvars[0]))
    return [ChannelIds(axes, sets.zero_at(v, axes)) for v in operands]


def reduce_window_rule(eqn: Any, sets: UnionFind, value: ChannelIds, *start: ChannelIds) -> Results:
    params, shape = eqn.params, shape_of(eqn.outvars[0])
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    windows = [params.get(name) or (1,) * len(shape) for name in names]
    single = [
        all(sizes[k] == 1 for sizes in windows) and tuple(params["padding"][k]) == (0, 0)
        for k in range(len(shape))
    ]
    axes = sets.pin_others(value, lambda k: single[k])
    axes = [a if one else fixed(n) for a, one, n in zip(axes, single, shape, strict=True)]
    padded = eqn.primitive.name != "reduce_window_sum" and np.any(params["padding"])
    return [ChannelIds(tuple(axes), None if padded else _zero_still(eqn, value))]


def dot_general_rule(eqn: Any, sets: UnionFind, a: ChannelIds, b: ChannelIds) -> Results:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    for i, j in zip(contract_a, contract_b, strict=True):
        contract(sets, (a, a.axes[i]), (b, b.axes[j]))
    batch = [sets.union(a.axes[i], b.axes[j]) for i, j in zip(batch_a, batch_b, strict=True)]
    parts = []
    for value, dropped in ((a, {*contract_a, *batch_a}), (b, {*contract_b, *batch_b})):
        parts.append(_part(value, [k for k in range(len(value.axes)) if k not in dropped]))
    zeros = [sets.zero_at(part, part.axes) for part in parts]
    zeros.append(sets.any_zero([_part(a, batch_a), _part(b, batch_b)], batch))
    axes = (*batch, *parts[0].axes, *parts[1].axes)
    return [ChannelIds(axes, together(zeros), uniform=sets.uniform((a, b)))]


def _part(value: ChannelIds, axes: Sequence[int]) -> ChannelIds:
    return value._replace(axes=tuple(value.axes[k] for k in axes))


def conv_rule(eqn: Any, sets: UnionFind, x: ChannelIds, kernel: ChannelIds) -> Results:
    numbers = eqn.params["dimension_numbers"]
    if eqn.params["batch_group_count"] != 1:
        return unknown(eqn, sets, x, kernel)
    batch, features, *_ = numbers.lhs_spec
    outputs, inputs, *_ = numbers.rhs_spec
    x = x._replace(axes=tuple(sets.pin_others(x, lambda k: k in (batch, features))))
    for k, axis in enumerate(kernel.axes):
        if k not in (outputs, inputs):
            sets.fix(axis)
    out = kernel.axes[outputs]
    incoming, groups = x.axes[features], eqn.params["feature_group_count"]
    if groups == 1:
        contract(sets, (x, incoming), (kernel, kernel.axes[inputs]))
    elif groups == incoming.size:
        out = sets.union(np.repeat(incoming, out.size // groups), out)
    else:
        contract(sets, (x, incoming), (kernel, np.tile(kernel.axes[inputs], groups)))
        out = sets.union(np.tile(out[: out.size // groups], groups), out)
    result = [fixed(n) for n in shape_of(eqn.outvars[0])]
    result[numbers.out_spec[0]], result[numbers.out_spec[1]] = x.axes[batch], sets.find(out)
    zero = None if sets.removable(x.axes[batch]) else kernel.zero
    return [ChannelIds(tuple(result), zero)]


def contract(sets: UnionFind, a: tuple[ChannelIds, Vector], b: tuple[ChannelIds, Vector]) -> None:
    """Unite the indices that a sum runs over, if one of its factors is zero at a removed channel.

    Else removal would change a sum over channels, as it does a norm, a mean or attention.
    """
    zero = [(value, axis) for value, axis in (a, b) if value.zero is not None]
    if not zero or any(is_free(axis) for _, axis in (a, b)):
        sets.pin(a[1])
        sets.pin(b[1])
    weights = [(value, axis) for value, axis in zero if value.given]
    sets.zeroed += [sets.required(value, axis) for value, axis in weights or zero[:1]]
    sets.incoming += [axis for _, axis in weights]
    sets.union(a[1], b[1])


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE.split(), elementwise_rule),
    **dict.fromkeys(REDUCTIONS.split(), reduction_rule),
    **dict.fromkeys(OVER_DEVICES.split(), over_devices_rule),
    **dict.fromkeys(WINDOWS.split(), reduce_window_rule),
    **dict.fromkeys(ALONG_AN_AXIS.split(), along_an_axis_rule),
    "bitcast_convert_type": bitcast_rule,
    "broadcast_in_dim": shapes.broadcast_in_dim_rule,
    "concatenate": shapes.concatenate_rule,
    "conv_general_dilated": conv_rule,
    "dot_general": dot_general_rule,
    "dynamic_slice": shapes.dynamic_slice_rule,
    "dynamic_update_slice": shapes.dynamic_update_slice_rule,
    "gather": shapes.gather_rule,
    "iota": shapes.iota_rule,
    "optimization_barrier": shapes.identity_rule,
    "pad": shapes.pad_rule,
    "reshape": shapes.reshape_rule,
    "rev": shapes.rev_rule,
    "sharding_constraint": shapes.identity_rule,
    "slice": shapes.slice_rule,
    "split": shapes.split_rule,
    "squeeze": shapes.squeeze_rule,
    **dict.fromkeys(shapes.SCATTERS.split(), shapes.scatter_rule),
    "stack": shapes.stack_rule,
    "tile": shapes.tile_rule,
    "transpose": shapes.transpose_rule,
    "unstack": shapes.unstack_rule,
}
