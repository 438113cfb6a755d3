"""Maps channel ids of operands to channel ids of results, for primitives that move elements.

Functions with the arguments `(eqn, sets, *values)` map the channel ids of the operands to the
channel ids of the results. Functions with the arguments `(eqn, remain, values, results)` return the
parameters of the primitive for the smaller arrays. The attributes `axes` and `smaller` of `Rule` in
`rules` store these functions.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from pruning.channels._coupling.channel_ids import (
    ChannelIds,
    UnionFind,
    Values,
    Vector,
    Zero,
    fixed,
    free,
    is_free,
    together,
)
from pruning.channels._program.calls import Equation, Options, shape_of

Results = list[ChannelIds]
Remain = Callable[[Vector], Vector]
"""A function that returns, for each channel id, whether its channel remains."""


def unknown(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    for value in values:
        sets.pin_others(value, lambda k: False)
    shapes = map(shape_of, eqn.outvars)
    return [ChannelIds(tuple(map(sets.new_pinned, shape))) for shape in shapes]


def identity(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    return list(values)


def bitcast(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    same = shape_of(eqn.invars[0]) == shape_of(eqn.outvars[0])
    return [ChannelIds(value.axes)] if same else unknown(eqn, sets, value)


def reshape(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    if 0 in old:
        return unknown(eqn, sets, value)
    # A reshape with `dimensions`, as in a `vmap` of a convolution over kernels, first transposes
    # its operand to the order `dimensions`.
    order, axes = eqn.params["dimensions"] or range(len(old)), []
    for before, after in _factors([old[k] for k in order], new):
        merged = sets.merge([value.axes[order[k]] for k in before])
        axes += sets.split_axis(merged, [new[k] for k in after], after.start)
    return [value._replace(axes=tuple(axes))]


def transpose(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    return [value._replace(axes=tuple(value.axes[k] for k in eqn.params["permutation"]))]


def squeeze(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    squeezed = eqn.params["dimensions"]
    axes = tuple(axis for k, axis in enumerate(value.axes) if k not in squeezed)
    return [value._replace(axes=axes)]


def broadcast_in_dim(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    axes = [free(n) for n in shape_of(eqn.outvars[0])]
    for axis, k in zip(value.axes, eqn.params["broadcast_dimensions"], strict=True):
        if axis.size == axes[k].size:
            axes[k] = axis
    return [value._replace(axes=tuple(axes))]


def reverse(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    reversed_axes = eqn.params["dimensions"]
    axes = (axis[::-1] if k in reversed_axes else axis for k, axis in enumerate(value.axes))
    return [value._replace(axes=tuple(axes))]


def tile(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    axes = (np.tile(axis, n) for axis, n in zip(value.axes, eqn.params["reps"], strict=True))
    return [value._replace(axes=tuple(axes))]


def stack(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    axes, new = sets.union_all(values, shape_of(eqn.invars[0])), eqn.params["axis"]
    zero = sets.all_zero(values, axes)
    return [ChannelIds((*axes[:new], fixed(len(values)), *axes[new:]), zero)]


def unstack(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    stacked = eqn.params["axis"]
    sets.pin(value.axes[stacked])
    axes = tuple(axis for k, axis in enumerate(value.axes) if k != stacked)
    return [value._replace(axes=axes) for _ in eqn.outvars]


def iota(eqn: Equation, sets: UnionFind) -> Results:
    shape, axis = shape_of(eqn.outvars[0]), eqn.params["dimension"]
    return [ChannelIds(tuple(fixed(n) if k == axis else free(n) for k, n in enumerate(shape)))]


def concatenate(eqn: Equation, sets: UnionFind, *values: ChannelIds) -> Results:
    axis = eqn.params["dimension"]
    parts = (v.axes[axis] for v in values)
    # If an operand has no channel ids along the axis, the operand keeps its size. Therefore the
    # ids of the axis become `FIXED`.
    parts = [fixed(p.size) if is_free(p) else p for p in parts]
    axes = [
        np.concatenate(parts) if k == axis else reduce(sets.union, [v.axes[k] for v in values])
        for k in range(len(values[0].axes))
    ]
    zero = together(
        sets.zero_at(v, [*axes[:axis], v.axes[axis], *axes[axis + 1 :]]) for v in values
    )
    return [ChannelIds(tuple(axes), zero)]


def pad(eqn: Equation, sets: UnionFind, value: ChannelIds, padding: ChannelIds) -> Results:
    axes = []
    for axis, sides in zip(value.axes, eqn.params["padding_config"], strict=True):
        low, high, between = map(int, sides)
        if (low, high, between) == (0, 0, 0):
            axes.append(axis)
        elif between or low < 0 or high < 0:
            sets.pin(axis)
            axes.append(fixed(shape_of(eqn.outvars[0])[len(axes)]))
        else:
            inner = fixed(axis.size) if is_free(axis) else axis
            axes.append(np.concatenate([fixed(low), inner, fixed(high)]))
    return [ChannelIds(tuple(axes), value.zero if padding.number == 0 else None)]


def slice_(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or [1] * len(starts)
    axes = []
    for axis, start, limit, stride in zip(value.axes, starts, limits, strides, strict=True):
        if stride > 1 and sets.removable(axis):
            axis = _in_blocks(sets, axis, start, limit, stride)
        axes.append(_part(sets, axis, axis[start:limit:stride]))
    return [value._replace(axes=tuple(axes))]


def smaller_slice(eqn: Equation, remain: Remain, values: Values, results: Values) -> Options:
    """The bounds of the slice in the array without removed channels."""
    starts, shape = eqn.params["start_indices"], sizes(remain, results[0])
    strides = eqn.params["strides"] or (1,) * len(starts)
    small = tuple(
        int(remain(axis[:start]).sum()) if stride == 1 else start
        for axis, start, stride in zip(values[0].axes, starts, strides, strict=True)
    )
    triples = zip(small, strides, shape, strict=True)
    limits = tuple(start + max((n - 1) * stride + 1, 0) for start, stride, n in triples)
    return {"start_indices": small, "limit_indices": limits}


def _part(sets: UnionFind, whole: Vector, part: Vector) -> Vector:
    """The channel ids of a `part` of an axis.

    A part that is a single channel must not become empty, so its channel cannot be removed.
    """
    return sets.pin(part) if part.size == 1 < whole.size else part


def _in_blocks(sets: UnionFind, axis: Vector, start: int, limit: int, stride: int) -> Vector:
    """The channel ids of `axis`, united within each block of `stride` consecutive channels.

    If the slice does not read one channel of each block, none of the channels can be removed.
    """
    if axis.size % stride or limit <= axis.size - stride + start:
        return sets.pin(axis)
    line, *others = axis.reshape(-1, stride).T
    for other in others:
        sets.union(line, other)
    return axis


def dynamic_slice(
    eqn: Equation, sets: UnionFind, value: ChannelIds, *starts: ChannelIds
) -> Results:
    shape = shape_of(eqn.outvars[0])
    axes = sets.pin_others(value, lambda k: value.axes[k].size == shape[k])
    axes = [a if a.size == n else fixed(n) for a, n in zip(axes, shape, strict=True)]
    return [ChannelIds(tuple(axes), value.zero)]


def split(eqn: Equation, sets: UnionFind, value: ChannelIds) -> Results:
    axis, parts = eqn.params["axis"], eqn.params["sizes"]
    whole = value.axes[axis]
    vectors = [_part(sets, whole, part) for part in np.split(whole, np.cumsum(parts)[:-1])]
    before, after = value.axes[:axis], value.axes[axis + 1 :]
    return [value._replace(axes=(*before, vector, *after)) for vector in vectors]


def smaller_split(eqn: Equation, remain: Remain, values: Values, results: Values) -> Options:
    return {"sizes": tuple(sizes(remain, result)[eqn.params["axis"]] for result in results)}


def dynamic_update_slice(
    eqn: Equation, sets: UnionFind, value: ChannelIds, new: ChannelIds, *starts: ChannelIds
) -> Results:
    whole = [a.size == b.size for a, b in zip(value.axes, new.axes, strict=True)]
    old_axes, new_axes = (sets.pin_others(v, lambda k: whole[k]) for v in (value, new))
    pairs = zip(whole, old_axes, new_axes, strict=True)
    axes = tuple(sets.union(a, b) if w else a for w, a, b in pairs)
    return [ChannelIds(axes, sets.all_zero((value, new), axes))]


def scatter(
    eqn: Equation, sets: UnionFind, value: ChannelIds, indices: ChannelIds, new: ChannelIds
) -> Results:
    whole = _windows(eqn)
    sets.pin_others(indices, lambda k: False)
    sets.pin_others(new, lambda j: j in whole.values())
    axes = sets.pin_others(value, lambda k: k in whole)
    axes = [sets.union(a, new.axes[whole[k]]) if k in whole else a for k, a in enumerate(axes)]
    written = [new.axes[whole[k]] if k in whole else axis for k, axis in enumerate(axes)]
    zero = sets.all_zero((value, new._replace(axes=tuple(written))), axes)
    return [ChannelIds(tuple(axes), zero)]


def zero_of_scatter(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
    """The parameters that, if zero, make the operand and the updates and so the result zero.

    If the scatter combines the operand and the updates by a function, `zero_of_scatter` returns
    None, because the result may be nonzero.
    """
    return result.zero if eqn.params["update_jaxpr"] is None else None


def _windows(eqn: Equation) -> dict[int, int]:
    """The axes that a scatter overwrites completely, each with the matching axis of the updates."""
    numbers, (value, _, new) = eqn.params["dimension_numbers"], map(shape_of, eqn.invars)
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    others = (k for k in range(len(value)) if k not in dropped)
    pairs = zip(others, numbers.update_window_dims, strict=True)
    return {k: j for k, j in pairs if value[k] == new[j]}


def gather(eqn: Equation, sets: UnionFind, value: ChannelIds, indices: ChannelIds) -> Results:
    numbers, windows = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [axis.size == n for axis, n in zip(value.axes, windows, strict=True)]
    axes = sets.pin_others(value, lambda k: whole[k])
    sets.pin_others(indices, lambda k: False)
    result = [fixed(n) for n in shape_of(eqn.outvars[0])]
    remaining = [k for k in range(len(axes)) if k not in dropped]
    for k, position in zip(remaining, numbers.offset_dims, strict=True):
        if whole[k]:
            result[position] = axes[k]
    # the value that the result has where an index points outside the array
    missing = eqn.params["fill_value"]
    zero = value.zero if missing is None or not missing or np.isnan(missing) else None
    return [ChannelIds(tuple(result), zero)]


def smaller_gather(eqn: Equation, remain: Remain, values: Values, results: Values) -> Options:
    windows = zip(eqn.params["slice_sizes"], values[0].axes, strict=True)
    return {"slice_sizes": tuple(int(remain(a).sum()) if n == a.size else n for n, a in windows)}


def smaller_shape(name: str) -> Callable[..., Options]:
    """The field `smaller` of `Rule` for primitives whose parameter `name` is the result's shape."""
    return lambda eqn, remain, values, results: {name: sizes(remain, results[0])}


def sizes(remain: Remain, value: ChannelIds) -> tuple[int, ...]:
    """The shape of an array with the given channel ids, without the removed channels."""
    return tuple(int(remain(axis).sum()) for axis in value.axes)


def _factors(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Pairs of the shortest runs of consecutive axes that a reshape maps to each other.

    The two runs of a pair have the same number of elements. Axes of size 1 at the end of `old` are
    in no run.
    """
    i = j = 0
    while j < len(new):
        first, second, counts = i, j, [1, new[j]]
        j += 1
        if i < len(old):
            counts[0], i = old[i], i + 1
        while counts[0] != counts[1]:
            if counts[0] < counts[1]:
                counts[0], i = counts[0] * old[i], i + 1
            else:
                counts[1], j = counts[1] * new[j], j + 1
        yield range(first, i), range(second, j)
