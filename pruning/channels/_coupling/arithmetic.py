"""Maps channel ids of operands to channel ids of results, for arithmetic primitives.

After channels are removed, a sum over channels lacks the terms of the removed channels. The missing
terms must all be zero or all be equal. If the missing terms are equal but not zero, `resized` adds
them to the sum. The rule of a sum records which arrays must have zero or equal elements at removed
channels. If no parameters can make the elements at removed channels zero or equal, the rule forbids
the removal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pruning.channels._coupling.channel_ids import (
    ChannelIds,
    UnionFind,
    Values,
    Vector,
    Zero,
    fixed,
    is_free,
    together,
)
from pruning.channels._coupling.moves import Remain, Results, unknown
from pruning.channels._program.calls import Equation, Options, shape_of

Zeros = Callable[[Equation, UnionFind, Values, ChannelIds], Zero]
"""A function that returns the parameters that, if zero, make a result zero; see `ChannelIds`.

The function is called as `zero(eqn, sets, values, result)`.
"""


def never(*_: Any) -> None:
    """Return None: there are no parameters that make the result zero."""
    return


def same(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make the result zero; stored by the rule's function `axes`."""
    return result.zero


def any_of(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make an operand and so the result zero, as for a product."""
    return sets.any_zero(values, result.axes)


def all_of(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make all operands and so the result zero, as for a sum."""
    return sets.all_zero(values, result.axes)


def first_of(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make the first operand and so a quotient zero."""
    return sets.zero_at(values[0], result.axes)


def cases_of(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make all operands except the first and so the result zero.

    The first operand only selects elements of the other operands.
    """
    return sets.all_zero(values[1:], result.axes)


def extremum(sign: int) -> Zeros:
    """The rule of a maximum (`sign` 1) or minimum (−1): the parameters that, if zero, make it zero.

    A maximum is zero if all array operands are zero and no constant operand is positive. A minimum
    is zero if all array operands are zero and no constant operand is negative.
    """

    def zero(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
        within = [v for v in values if v.number is None or sign * v.number > 0]
        return sets.all_zero(within, result.axes)

    return zero


def elementwise(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    return [ChannelIds(sets.union_all(values, shape_of(eqn.outvars[0])))]


def reduce(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    """The channel ids of the remaining axes; channels along a reduced axis cannot be removed."""
    return _reduce_axes(eqn, sets, values, lambda value: False)


def reduce_sum(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    """The channel ids of the remaining axes after a sum.

    Channels along a summed axis can be removed if their terms in the sum are zero.

    If only one summed axis has removable channels, the channels can also be removed if their terms
    are equal but not zero. `resized` then adds the common term to the sum once for each removed
    channel.
    """

    def summable(value: ChannelIds) -> bool:
        if value.zero is not None:
            return True
        summed = (value.axes[k] for k in eqn.params["axes"])
        return value.uniform is not None and sum(map(sets.removable, summed)) == 1

    return _reduce_axes(eqn, sets, values, summable)


def _reduce_axes(
    eqn: Equation, sets: UnionFind, values: Values, summable: Callable[[ChannelIds], bool]
) -> Results:
    results, reduced = [], _positions(eqn)
    for value in values:
        axes = tuple(axis for k, axis in enumerate(value.axes) if k not in reduced)
        for axis in (value.axes[k] for k in reduced):
            if not summable(value):
                sets.pin(axis)
                continue
            sets.zeroed.append(sets.requirement_of(value, axis))
            if not _is_weight(sets, value, axes):
                sets.report(axis, normed=True)
        results.append(ChannelIds(axes, value.zero))
    return results


def _positions(eqn: Equation) -> list[int]:
    """The numbers of the axes that an equation reduces; names of mesh axes are left out."""
    return [int(k) for k in eqn.params.get("axes", ()) if isinstance(k, int | np.integer)]


def _is_weight(sets: UnionFind, value: ChannelIds, others: Sequence[Vector]) -> bool:
    """Whether the terms of a sum over channels contain a weight that is zero at removed channels.

    The weight may be multiplied by other values before the sum. Any other sum over channels counts
    as a part of a norm, which divides by the whole width.
    """
    return value.zero is not None and (value.given or any(map(sets.removable, others)))


def over_devices(
    eqn: Equation,
    sets: UnionFind,
    *values: ChannelIds,
    summable: Callable[[ChannelIds], bool] = lambda value: False,
) -> Results:
    """The channel ids of the results of a collective, which combines the arrays of several devices.

    Because each device has all channels, a collective sums over no channels. If `jax.vmap` has
    bound the axis name, the collective instead reduces an axis of the batched arrays.
    """
    if _positions(eqn):
        return _reduce_axes(eqn, sets, values, summable)
    return [v._replace(number=None, at_zero=None, nonzero=False) for v in values]


def sum_over_devices(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    return over_devices(eqn, sets, *values, summable=lambda value: value.zero is not None)


def along_an_axis(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    operands = [ChannelIds(tuple(sets.pin_others(v, lambda k: k != axis)), v.zero) for v in values]
    axes = sets.union_all(operands, shape_of(eqn.outvars[0]))
    return [ChannelIds(axes, sets.zero_at(v, axes)) for v in operands]


def fourier(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    """Channels along transformed axes cannot be removed; all other axes keep their ids."""
    shape = shape_of(eqn.outvars[0])
    first = len(shape) - len(eqn.params["fft_lengths"])
    axes = sets.pin_others(value, lambda k: k < first)
    transformed = (sets.pin_like([axes[k]], shape[k]) for k in range(first, len(shape)))
    return [ChannelIds((*axes[:first], *transformed), value.zero)]


def reduce_window(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    params, shape = eqn.params, shape_of(eqn.outvars[0])
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    windows = [params[name] for name in names]
    single = [
        all(sizes[k] == 1 for sizes in windows) and tuple(params["padding"][k]) == (0, 0)
        for k in range(len(shape))
    ]
    operands = values[: len(eqn.outvars)]  # the other operands are initial values
    pinned = [ChannelIds(tuple(sets.pin_others(v, lambda k: single[k]))) for v in operands]
    axes = sets.union_all(pinned, shape_of(eqn.invars[0]))
    axes = [a if one else fixed(n) for a, one, n in zip(axes, single, shape, strict=True)]
    return [ChannelIds(tuple(axes), v.zero) for v in operands]


def unpadded(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make a window reduction zero; None if windows are padded."""
    return None if np.any(eqn.params["padding"]) else result.zero


def dot_general(eqn: Equation, sets: UnionFind, a: ChannelIds, b: ChannelIds) -> Results:
    return _product(sets, a, b, eqn.params["dimension_numbers"])


def ragged_dot(
    eqn: Equation, sets: UnionFind, a: ChannelIds, b: ChannelIds, *sizes: ChannelIds
) -> Results:
    """The channel ids of a product that multiplies each group of rows by its own matrix.

    `sizes` has the number of rows in each group, such as the tokens of each expert. Channels along
    the axes of rows and of groups cannot be removed.
    """
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (rows,), dropped = numbers.lhs_ragged_dimensions, tuple(numbers.rhs_group_dimensions)
    contracted, batch = numbers.dot_dimension_numbers
    if rows in (*contracted[0], *batch[0]):
        return unknown(eqn, sets, a, b, *sizes)
    for value in sizes:
        sets.pin_others(value, lambda k: False)
    a = a._replace(axes=tuple(sets.pin_others(a, lambda k: k != rows)))
    b = b._replace(axes=tuple(sets.pin_others(b, lambda k: k not in dropped)))
    return _product(sets, a, b, numbers.dot_dimension_numbers, dropped)


def _product(
    sets: UnionFind, a: ChannelIds, b: ChannelIds, numbers: Any, dropped: Sequence[int] = ()
) -> Results:
    """The channel ids of a product of `a` and `b`; the result lacks the axes `dropped` of `b`."""
    (contract_a, contract_b), (batch_a, batch_b) = numbers
    for i, j in zip(contract_a, contract_b, strict=True):
        if 0 in (a.number, b.number):  # the product is 0, as with the first state of an RNN
            sets.union(a.axes[i], b.axes[j])
        else:
            _contract(sets, (a, a.axes[i]), (b, b.axes[j]))
    batch = [sets.union(a.axes[i], b.axes[j]) for i, j in zip(batch_a, batch_b, strict=True)]
    parts = []
    for value, used in ((a, {*contract_a, *batch_a}), (b, {*contract_b, *batch_b, *dropped})):
        parts.append(_part(value, [k for k in range(len(value.axes)) if k not in used]))
    zeros = [sets.zero_at(part, part.axes) for part in parts]
    zeros.append(sets.any_zero([_part(a, batch_a), _part(b, batch_b)], batch))
    return [ChannelIds((*batch, *parts[0].axes, *parts[1].axes), together(zeros))]


def _part(value: ChannelIds, axes: Sequence[int]) -> ChannelIds:
    return value._replace(axes=tuple(value.axes[k] for k in axes))


def convolution(eqn: Equation, sets: UnionFind, x: ChannelIds, kernel: ChannelIds) -> Results:
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
        _contract(sets, (x, incoming), (kernel, kernel.axes[inputs]))
    elif groups == incoming.size:
        if is_free(incoming):
            sets.pin(out)  # An input without channel ids is a constant, which keeps its size.
        out = sets.union(np.repeat(incoming, out.size // groups), out)
    else:
        _contract(sets, (x, incoming), (kernel, np.tile(kernel.axes[inputs], groups)))
        out = sets.union(np.tile(out[: out.size // groups], groups), out)
    result = [fixed(n) for n in shape_of(eqn.outvars[0])]
    result[numbers.out_spec[0]], result[numbers.out_spec[1]] = x.axes[batch], sets.find(out)
    zero = None if sets.removable(x.axes[batch]) else kernel.zero
    return [ChannelIds(tuple(result), zero)]


def smaller_convolution(eqn: Equation, remain: Remain, values: Values, results: Values) -> Options:
    """The parameters of a convolution whose operands have lost channels.

    A depthwise convolution gets as many feature groups as channels remain.
    """
    features = values[0].axes[eqn.params["dimension_numbers"].lhs_spec[1]]
    depthwise = eqn.params["feature_group_count"] == features.size
    return {"feature_group_count": int(remain(features).sum())} if depthwise else {}


def _contract(sets: UnionFind, a: tuple[ChannelIds, Vector], b: tuple[ChannelIds, Vector]) -> None:
    """Unite the ids of both factors along a summed axis if one factor is zero at removed channels.

    If both factors may be nonzero at removed channels, removal would change the sum, so removal is
    forbidden. For example, the sums in norms, means and attention forbid removals.
    """
    zero = [(value, axis) for value, axis in (a, b) if value.zero is not None]
    if not zero or any(is_free(axis) for _, axis in (a, b)):
        sets.pin(a[1])
        sets.pin(b[1])
    weights = [(value, axis) for value, axis in zero if value.given]
    chosen = [(value, axis) for value, axis in zero if value.chosen]
    if not weights and len(chosen) == 1:  # for example, a router chooses the kernel of an expert
        weights = chosen
    factors, found = weights or zero[:1], bool(weights)
    sets.zeroed += [sets.requirement_of(value, axis, weight=found) for value, axis in factors]
    sets.union(a[1], b[1])
