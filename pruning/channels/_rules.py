"""What each primitive of a traced program does to labels of channels.

A rule is called as `rule(eqn, joins, *values)` with the `Labels` of the operands and returns those
of the results. A shape that the program spells out, such as the bounds of a slice, does not follow
when channels go: a rule that meets one on an axis of channels makes these channels stay.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pruning.channels._ids import FREE, Joins, Labels, Vector, fixed, free

Rule = Callable[..., list[Labels]]


def elementwise(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    """Every index meets its own: all operands share their labels."""
    axes = joins.join_all(values, eqn.outvars[0].aval.shape)
    return [Labels(axes, _is_weight(eqn.primitive.name, joins, axes, values))]


def identity(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    return list(values)


def unknown(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    """Nothing is known of what comes out, so all that goes in stays."""
    for value in values:
        joins.without(value, lambda k: False, eqn.primitive.name)
    return [Labels(tuple(fixed(n) for n in _shape(v))) for v in eqn.outvars]


def reshape(eqn: Any, joins: Joins, value: Labels, *sizes: Labels) -> list[Labels]:
    old, new, name = _shape(eqn.invars[0]), _shape(eqn.outvars[0]), eqn.primitive.name
    if sizes or eqn.params.get("dimensions") is not None or 0 in old:
        return unknown(eqn, joins, value, *sizes)
    axes = []
    for before, after in _blocks(old, new):
        merged = joins.merge([value.axes[k] for k in before], name)
        axes += joins.split(merged, [new[k] for k in after], name)
    return [Labels(tuple(axes), value.weight)]


def transpose(eqn: Any, joins: Joins, value: Labels) -> list[Labels]:
    return [Labels(tuple(value.axes[k] for k in eqn.params["permutation"]), value.weight)]


def squeeze(eqn: Any, joins: Joins, value: Labels) -> list[Labels]:
    gone = eqn.params["dimensions"]
    return [Labels(tuple(a for k, a in enumerate(value.axes) if k not in gone), value.weight)]


def broadcast_in_dim(eqn: Any, joins: Joins, value: Labels, *sizes: Labels) -> list[Labels]:
    axes = [free(n) for n in _shape(eqn.outvars[0])]
    for axis, k in zip(value.axes, eqn.params["broadcast_dimensions"], strict=True):
        if axis.size == axes[k].size:
            axes[k] = axis
    return [Labels(tuple(axes), value.weight)]


def rev(eqn: Any, joins: Joins, value: Labels) -> list[Labels]:
    turned = eqn.params["dimensions"]
    axes = (axis[::-1] if k in turned else axis for k, axis in enumerate(value.axes))
    return [Labels(tuple(axes), value.weight)]


def concatenate(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    """Constants of a size that is written in the program stay beside channels that may go."""
    axis = eqn.params["dimension"]
    parts = [v.axes[axis] for v in values]
    if not all((part == FREE).all() for part in parts):
        parts = [fixed(p.size) if (p == FREE).all() else p for p in parts]
    rest = [Labels((*v.axes[:axis], parts[0], *v.axes[axis + 1 :])) for v in values]
    axes = [
        np.concatenate(parts) if k == axis else _joined(joins, [r.axes[k] for r in rest])
        for k in range(len(values[0].axes))
    ]
    return [Labels(tuple(axes), all(v.weight for v in values))]


def pad(eqn: Any, joins: Joins, value: Labels, filling: Labels) -> list[Labels]:
    """What is added stays, as its width is written in the program."""
    axes = []
    for axis, sides in zip(value.axes, eqn.params["padding_config"], strict=True):
        low, high, between = map(int, sides)
        if (low, high, between) == (0, 0, 0):
            axes.append(axis)
        elif between or low < 0 or high < 0:
            joins.fix(axis, eqn.primitive.name)
            axes.append(fixed(_shape(eqn.outvars[0])[len(axes)]))
        else:
            inner = fixed(axis.size) if (axis == FREE).all() else axis
            axes.append(np.concatenate([fixed(low), inner, fixed(high)]))
    return [Labels(tuple(axes), value.weight)]


def part(eqn: Any, joins: Joins, value: Labels, *starts: Labels) -> list[Labels]:
    """A slice, static or dynamic: of an axis of channels the whole or nothing."""
    shape = _shape(eqn.outvars[0])
    axes = joins.without(value, lambda k: value.axes[k].size == shape[k], eqn.primitive.name)
    axes = [a if a.size == n else fixed(n) for a, n in zip(axes, shape, strict=True)]
    return [Labels(tuple(axes), value.weight)]


def split(eqn: Any, joins: Joins, value: Labels) -> list[Labels]:
    axis = eqn.params["axis"]
    axes = joins.without(value, lambda k: k != axis, eqn.primitive.name)
    sizes = [_shape(v)[axis] for v in eqn.outvars]
    return [Labels((*axes[:axis], fixed(n), *axes[axis + 1 :]), value.weight) for n in sizes]


def update(eqn: Any, joins: Joins, value: Labels, new: Labels, *starts: Labels) -> list[Labels]:
    name = eqn.primitive.name
    whole = [a.size == b.size for a, b in zip(value.axes, new.axes, strict=True)]
    old, new_axes = (joins.without(v, lambda k: whole[k], name) for v in (value, new))
    pairs = zip(whole, old, new_axes, strict=True)
    return [Labels(tuple(joins.join(a, b) if w else a for w, a, b in pairs))]


def gather(eqn: Any, joins: Joins, value: Labels, indices: Labels) -> list[Labels]:
    """Axes that are taken whole keep their labels; those that are indexed stay."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [k not in gone and axis.size == sizes[k] for k, axis in enumerate(value.axes)]
    axes = joins.without(value, lambda k: whole[k], eqn.primitive.name)
    joins.without(indices, lambda k: False, eqn.primitive.name)
    found = [fixed(n) for n in _shape(eqn.outvars[0])]
    kept = [k for k in range(len(axes)) if k not in gone]
    for k, position in zip(kept, numbers.offset_dims, strict=True):
        if whole[k]:
            found[position] = axes[k]
    return [Labels(tuple(found), value.weight)]


def reduction(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    """Over space labels stay; over channels the result would change with their number."""
    gone, name = eqn.params["axes"], eqn.primitive.name
    kept = [joins.without(v, lambda k: k not in gone, name) for v in values if v.axes]
    axes = joins.join_all(
        [Labels(tuple(a for k, a in enumerate(axes) if k not in gone)) for axes in kept],
        _shape(eqn.outvars[0]),
    )
    return [Labels(axes) for _ in eqn.outvars]


def along(eqn: Any, joins: Joins, *values: Labels) -> list[Labels]:
    """Cumulative sums and sorting mix the indices of one axis."""
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    name = eqn.primitive.name
    kept = [Labels(tuple(joins.without(v, lambda k: k != axis, name))) for v in values]
    return [Labels(joins.join_all(kept, _shape(v))) for v in eqn.outvars]


def reduce_window(eqn: Any, joins: Joins, value: Labels, *start: Labels) -> list[Labels]:
    """Pooling: an axis whose window is one index keeps its labels."""
    params, shape = eqn.params, _shape(eqn.outvars[0])
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    ones = [params.get(name) or (1,) * len(shape) for name in names]
    still = [
        all(sizes[k] == 1 for sizes in ones) and tuple(params["padding"][k]) == (0, 0)
        for k in range(len(shape))
    ]
    axes = joins.without(value, lambda k: still[k], eqn.primitive.name)
    return [Labels(tuple(a if s else fixed(n) for a, s, n in zip(axes, still, shape, strict=True)))]


def iota(eqn: Any, joins: Joins, *sizes: Labels) -> list[Labels]:
    shape, axis = _shape(eqn.outvars[0]), eqn.params["dimension"]
    return [Labels(tuple(fixed(n) if k == axis else free(n) for k, n in enumerate(shape)))]


def dot_general(eqn: Any, joins: Joins, a: Labels, b: Labels) -> list[Labels]:
    """Contracted indices meet; the others become the axes of the result."""
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    for i, j in zip(contract_a, contract_b, strict=True):
        contract(joins, (a, a.axes[i]), (b, b.axes[j]), eqn.primitive.name)
    batch = [joins.join(a.axes[i], b.axes[j]) for i, j in zip(batch_a, batch_b, strict=True)]
    gone_a, gone_b = {*contract_a, *batch_a}, {*contract_b, *batch_b}
    rest = [axis for k, axis in enumerate(a.axes) if k not in gone_a]
    rest += [axis for k, axis in enumerate(b.axes) if k not in gone_b]
    return [Labels((*batch, *rest))]


def conv(eqn: Any, joins: Joins, x: Labels, kernel: Labels) -> list[Labels]:
    """The result has the kernel's outputs; the kernel's inputs meet the channels that come in."""
    numbers, name = eqn.params["dimension_numbers"], eqn.primitive.name
    if eqn.params["batch_group_count"] != 1:
        return unknown(eqn, joins, x, kernel)
    batch, features, *_ = numbers.lhs_spec
    outputs, inputs, *_ = numbers.rhs_spec
    x = Labels(tuple(joins.without(x, lambda k: k in (batch, features), name)), x.weight)
    for axis in kernel.axes:
        if axis is not kernel.axes[outputs] and axis is not kernel.axes[inputs]:
            joins.join(axis, fixed(axis.size))
    out = kernel.axes[outputs]
    incoming, groups = x.axes[features], eqn.params["feature_group_count"]
    if groups == 1:
        contract(joins, (x, incoming), (kernel, kernel.axes[inputs]), name)
    elif groups == incoming.size:
        out = joins.join(np.repeat(incoming, out.size // groups), out)
    else:
        contract(joins, (x, incoming), (kernel, np.tile(kernel.axes[inputs], groups)), name)
        out = joins.join(np.tile(out[: out.size // groups], groups), out)
    found = [fixed(n) for n in _shape(eqn.outvars[0])]
    found[numbers.out_spec[0]], found[numbers.out_spec[1]] = x.axes[batch], joins.roots(out)
    return [Labels(tuple(found))]


def contract(
    joins: Joins, a: tuple[Labels, Vector], b: tuple[Labels, Vector], primitive: str
) -> None:
    """Join the indices that a sum runs over, if a parameter is zero there when a channel goes.

    Else removal would change a sum over channels, as it does a norm, a mean or attention.
    """
    free_axis = any((axis == FREE).all() for _, axis in (a, b))
    if free_axis or not (a[0].weight or b[0].weight):
        joins.fix(a[1], primitive)
        joins.fix(b[1], primitive)
    joins.incoming += [axis for value, axis in (a, b) if value.weight]
    joins.join(a[1], b[1])


def _is_weight(name: str, joins: Joins, axes: Sequence[Vector], values: Sequence[Labels]) -> bool:
    """Whether a result is zero at a label whose parameters are: products, sums and their like."""

    def covers(value: Labels) -> bool:
        pairs = zip(axes, value.axes, strict=True)
        missed = (v.size < a.size or (v == FREE).all() for a, v in pairs if joins.removable(a))
        return value.weight and not any(missed)

    def known(value: Labels) -> bool:
        return value.weight or all((axis == FREE).all() for axis in value.axes)

    if name in ("mul", "div"):
        first = values if name == "mul" else values[:1]
        return any(map(covers, first)) and all(map(known, values))
    return name in LINEAR and all(map(covers, values))


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of axes of two shapes that hold the same number of elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        first, second, sizes = i, j, [1, 1]
        if i < len(old):
            sizes[0], i = old[i], i + 1
        if j < len(new):
            sizes[1], j = new[j], j + 1
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0], i = sizes[0] * old[i], i + 1
            else:
                sizes[1], j = sizes[1] * new[j], j + 1
        yield range(first, i), range(second, j)


def _joined(joins: Joins, axes: Sequence[Vector]) -> Vector:
    *_, last = accumulate(axes, joins.join)
    return last


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


LINEAR = {"add", "add_any", "sub", "neg", "convert_element_type", "copy", "reduce_precision"}
ELEMENTWISE = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_any",
    "and",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "convert_element_type",
    "copy",
    "copy_p",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "integer_pow",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "neg",
    "nextafter",
    "not",
    "or",
    "population_count",
    "pow",
    "reduce_precision",
    "rem",
    "round",
    "rsqrt",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "sub",
    "tan",
    "tanh",
    "xor",
]
REDUCTIONS = [
    "argmax",
    "argmin",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
]
WINDOWS = ["reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum"]
ALONG = ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "sort"]
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(WINDOWS, reduce_window),
    **dict.fromkeys(ALONG, along),
    "broadcast_in_dim": broadcast_in_dim,
    "concatenate": concatenate,
    "conv_general_dilated": conv,
    "dot_general": dot_general,
    "dynamic_slice": part,
    "dynamic_update_slice": update,
    "gather": gather,
    "iota": iota,
    "optimization_barrier": identity,
    "pad": pad,
    "reshape": reshape,
    "rev": rev,
    "sharding_constraint": identity,
    "slice": part,
    "split": split,
    "squeeze": squeeze,
    "transpose": transpose,
}
