"""What each primitive of a traced program does to ids of channels.

A rule is called as `rule(eqn, sets, *values)` with the `ChannelIds` of the operands and returns
those of the results. A shape that the program spells out, such as the bounds of a slice, does not
change when channels are removed: a rule that finds one on an axis of channels pins these channels.

    primitive                    what it does to an axis
    elementwise (add, mul, ...)  unites the ids of all operands, index by index
    reduce_* (sum, max, ...)     keeps the other axes; pins the axis that is reduced
    cumsum, sort, ...            keeps the other axes; pins the axis along which they run
    reduce_window*               keeps axes whose window is one index; pins the others
    dot_general                  unites contracted and batch axes; keeps all others
    conv_general_dilated         unites the kernel's inputs with the features; returns its outputs
    reshape                      folds ids and unfolds them, along one axis of the removable only
    transpose, squeeze, rev      move, drop or reverse axes with their ids
    broadcast_in_dim             new axes are free
    concatenate, pad             put ids end to end; pin what is added beside channels
    slice, dynamic_slice, split  keep axes that are taken whole; pin the others
    dynamic_update_slice         unites axes that are replaced whole; pins the others
    gather                       keeps axes that are taken whole; pins those that are indexed
    iota                         fixed along its dimension, free along the others
    any other                    pins all that goes in
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pruning.channels import _shape_rules as shapes
from pruning.channels._channel_ids import ChannelIds, UnionFind, Vector, fixed, is_free
from pruning.channels._shape_rules import Results, shape_of, unknown

Rule = Callable[..., Results]
LINEAR = {"add", "add_any", "sub", "neg", "convert_element_type", "copy", "reduce_precision"}
ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
    clz convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1
    floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter
    not or population_count pow reduce_precision rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    xor
"""
POSITIVE = {"exp", "exp2", "logistic", "cosh"}
NONZERO = "abs convert_element_type copy div integer_pow mul neg rsqrt sqrt square"
# The operand at whose zero a value or a derivative is infinite.
SINGULAR = {"acosh": 0, "digamma": 0, "div": 1, "lgamma": 0, "log": 0, "pow": 0, "rem": 1}
SINGULAR |= {"rsqrt": 0, "sqrt": 0}
REDUCTIONS = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""
WINDOWS = "reduce_window reduce_window_max reduce_window_min reduce_window_sum"
ALONG_AN_AXIS = "cumlogsumexp cummax cummin cumprod cumsum sort"


def elementwise_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    axes, name = sets.union_all(values, shape_of(eqn.outvars[0])), eqn.primitive.name
    if name in SINGULAR or (name == "integer_pow" and eqn.params["y"] < 0):
        value = values[SINGULAR.get(name, 0)]
        if not _nonzero(value):
            sets.singular += value.axes
    positive = name in ("add", "max") and any((v.number or 0) > 0 for v in values)
    still = name in NONZERO.split() and all(map(_nonzero, values))
    number = values[0].number if name == "convert_element_type" else None
    weight = _weight(name, sets, axes, values)
    return [ChannelIds(axes, weight, number, positive or still or name in POSITIVE)]


def _nonzero(value: ChannelIds) -> bool:
    return value.nonzero or bool(value.number)


def reduction_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    reduced, name = eqn.params["axes"], eqn.primitive.name
    operands = [sets.pin_others(v, lambda k: k not in reduced, name) for v in values if v.axes]
    axes = sets.union_all(
        [
            ChannelIds(tuple(axis for k, axis in enumerate(axes) if k not in reduced))
            for axes in operands
        ],
        shape_of(eqn.outvars[0]),
    )
    return [ChannelIds(axes) for _ in eqn.outvars]


def along_an_axis_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    axis, name = eqn.params.get("axis", eqn.params.get("dimension")), eqn.primitive.name
    operands = [ChannelIds(tuple(sets.pin_others(v, lambda k: k != axis, name))) for v in values]
    return [ChannelIds(sets.union_all(operands, shape_of(v))) for v in eqn.outvars]


def reduce_window_rule(eqn: Any, sets: UnionFind, value: ChannelIds, *start: ChannelIds) -> Results:
    params, shape = eqn.params, shape_of(eqn.outvars[0])
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    windows = [params.get(name) or (1,) * len(shape) for name in names]
    single = [
        all(sizes[k] == 1 for sizes in windows) and tuple(params["padding"][k]) == (0, 0)
        for k in range(len(shape))
    ]
    axes = sets.pin_others(value, lambda k: single[k], eqn.primitive.name)
    axes = [a if one else fixed(n) for a, one, n in zip(axes, single, shape, strict=True)]
    return [ChannelIds(tuple(axes))]


def dot_general_rule(eqn: Any, sets: UnionFind, a: ChannelIds, b: ChannelIds) -> Results:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    for i, j in zip(contract_a, contract_b, strict=True):
        contract(sets, (a, a.axes[i]), (b, b.axes[j]), eqn.primitive.name)
    batch = [sets.union(a.axes[i], b.axes[j]) for i, j in zip(batch_a, batch_b, strict=True)]
    rest = [axis for k, axis in enumerate(a.axes) if k not in {*contract_a, *batch_a}]
    rest += [axis for k, axis in enumerate(b.axes) if k not in {*contract_b, *batch_b}]
    return [ChannelIds((*batch, *rest))]


def conv_rule(eqn: Any, sets: UnionFind, x: ChannelIds, kernel: ChannelIds) -> Results:
    numbers, name = eqn.params["dimension_numbers"], eqn.primitive.name
    if eqn.params["batch_group_count"] != 1:
        return unknown(eqn, sets, x, kernel)
    batch, features, *_ = numbers.lhs_spec
    outputs, inputs, *_ = numbers.rhs_spec
    x = ChannelIds(tuple(sets.pin_others(x, lambda k: k in (batch, features), name)), x.weight)
    for k, axis in enumerate(kernel.axes):
        if k not in (outputs, inputs):
            sets.union(axis, fixed(axis.size))
    out = kernel.axes[outputs]
    incoming, groups = x.axes[features], eqn.params["feature_group_count"]
    if groups == 1:
        contract(sets, (x, incoming), (kernel, kernel.axes[inputs]), name)
    elif groups == incoming.size:
        out = sets.union(np.repeat(incoming, out.size // groups), out)
    else:
        contract(sets, (x, incoming), (kernel, np.tile(kernel.axes[inputs], groups)), name)
        out = sets.union(np.tile(out[: out.size // groups], groups), out)
    result = [fixed(n) for n in shape_of(eqn.outvars[0])]
    result[numbers.out_spec[0]], result[numbers.out_spec[1]] = x.axes[batch], sets.find(out)
    return [ChannelIds(tuple(result))]


def contract(
    sets: UnionFind, a: tuple[ChannelIds, Vector], b: tuple[ChannelIds, Vector], primitive: str
) -> None:
    """Unite the indices that a sum runs over, if a parameter of a removed channel is zero there.

    Else removal would change a sum over channels, as it does a norm, a mean or attention.
    """
    free_axis = any(is_free(axis) for _, axis in (a, b))
    if free_axis or not (a[0].weight or b[0].weight):
        sets.pin(a[1], primitive)
        sets.pin(b[1], primitive)
    sets.incoming += [axis for value, axis in (a, b) if value.weight]
    sets.zeroed += [(value.weight, axis) for value, axis in (a, b) if value.weight]
    sets.union(a[1], b[1])


def _weight(
    name: str, sets: UnionFind, axes: Sequence[Vector], values: Sequence[ChannelIds]
) -> frozenset[int]:
    """The parameters that make a result zero at an id: of products, sums and their like."""

    def known(value: ChannelIds) -> bool:
        return bool(value.weight) or all(map(is_free, value.axes))

    if name in ("mul", "div") and all(map(known, values)):
        factors = values if name == "mul" else values[:1]
        return next((v.weight for v in factors if sets.covers(v, axes)), frozenset())
    if name in LINEAR and all(sets.covers(v, axes) for v in values):
        return frozenset().union(*(v.weight for v in values))
    return frozenset()


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE.split(), elementwise_rule),
    **dict.fromkeys(REDUCTIONS.split(), reduction_rule),
    **dict.fromkeys(WINDOWS.split(), reduce_window_rule),
    **dict.fromkeys(ALONG_AN_AXIS.split(), along_an_axis_rule),
    "broadcast_in_dim": shapes.broadcast_in_dim_rule,
    "concatenate": shapes.concatenate_rule,
    "conv_general_dilated": conv_rule,
    "dot_general": dot_general_rule,
    "dynamic_slice": shapes.slice_rule,
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
    "transpose": shapes.transpose_rule,
}
