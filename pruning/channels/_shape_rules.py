"""Rules of the primitives that move elements and compute nothing: see `_rules`."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pruning.channels._channel_ids import ChannelIds, UnionFind, fixed, free, is_free

Results = list[ChannelIds]


def unknown(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    for value in values:
        sets.pin_others(value, lambda k: False, eqn.primitive.name)
    return [ChannelIds(tuple(fixed(n) for n in shape_of(v))) for v in eqn.outvars]


def identity_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    return list(values)


def reshape_rule(eqn: Any, sets: UnionFind, value: ChannelIds, *sizes: ChannelIds) -> Results:
    old, new, name = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0]), eqn.primitive.name
    if sizes or eqn.params.get("dimensions") is not None or 0 in old:
        return unknown(eqn, sets, value, *sizes)
    axes = []
    for before, after in _factors(old, new):
        merged = sets.merge([value.axes[k] for k in before], name)
        axes += sets.split(merged, [new[k] for k in after], name)
    return [ChannelIds(tuple(axes), value.weight)]


def transpose_rule(eqn: Any, sets: UnionFind, value: ChannelIds) -> Results:
    return [ChannelIds(tuple(value.axes[k] for k in eqn.params["permutation"]), value.weight)]


def squeeze_rule(eqn: Any, sets: UnionFind, value: ChannelIds) -> Results:
    squeezed = eqn.params["dimensions"]
    axes = tuple(axis for k, axis in enumerate(value.axes) if k not in squeezed)
    return [ChannelIds(axes, value.weight)]


def broadcast_in_dim_rule(
    eqn: Any, sets: UnionFind, value: ChannelIds, *sizes: ChannelIds
) -> Results:
    axes = [free(n) for n in shape_of(eqn.outvars[0])]
    for axis, k in zip(value.axes, eqn.params["broadcast_dimensions"], strict=True):
        if axis.size == axes[k].size:
            axes[k] = axis
    return [ChannelIds(tuple(axes), value.weight)]


def rev_rule(eqn: Any, sets: UnionFind, value: ChannelIds) -> Results:
    reversed_axes = eqn.params["dimensions"]
    axes = (axis[::-1] if k in reversed_axes else axis for k, axis in enumerate(value.axes))
    return [ChannelIds(tuple(axes), value.weight)]


def iota_rule(eqn: Any, sets: UnionFind, *sizes: ChannelIds) -> Results:
    shape, axis = shape_of(eqn.outvars[0]), eqn.params["dimension"]
    return [ChannelIds(tuple(fixed(n) if k == axis else free(n) for k, n in enumerate(shape)))]


def concatenate_rule(eqn: Any, sets: UnionFind, *values: ChannelIds) -> Results:
    axis = eqn.params["dimension"]
    parts = [v.axes[axis] for v in values]
    if not all(map(is_free, parts)):  # beside channels, constants have a size of their own
        parts = [fixed(p.size) if is_free(p) else p for p in parts]
    axes = [
        np.concatenate(parts) if k == axis else reduce(sets.union, [v.axes[k] for v in values])
        for k in range(len(values[0].axes))
    ]
    covered = all(sets.covers(v, [*axes[:axis], v.axes[axis], *axes[axis + 1 :]]) for v in values)
    weight = frozenset().union(*(v.weight for v in values)) if covered else frozenset()
    return [ChannelIds(tuple(axes), weight)]


def pad_rule(eqn: Any, sets: UnionFind, value: ChannelIds, padding: ChannelIds) -> Results:
    axes = []
    for axis, sides in zip(value.axes, eqn.params["padding_config"], strict=True):
        low, high, between = map(int, sides)
        if (low, high, between) == (0, 0, 0):
            axes.append(axis)
        elif between or low < 0 or high < 0:
            sets.pin(axis, eqn.primitive.name)
            axes.append(fixed(shape_of(eqn.outvars[0])[len(axes)]))
        else:
            inner = fixed(axis.size) if is_free(axis) else axis
            axes.append(np.concatenate([fixed(low), inner, fixed(high)]))
    zeros = padding.number == 0 or all(a is b for a, b in zip(axes, value.axes, strict=True))
    return [ChannelIds(tuple(axes), value.weight if zeros else frozenset())]


def slice_rule(eqn: Any, sets: UnionFind, value: ChannelIds, *starts: ChannelIds) -> Results:
    shape, name = shape_of(eqn.outvars[0]), eqn.primitive.name
    axes = sets.pin_others(value, lambda k: value.axes[k].size == shape[k], name)
    axes = [a if a.size == n else fixed(n) for a, n in zip(axes, shape, strict=True)]
    return [ChannelIds(tuple(axes), value.weight)]


def split_rule(eqn: Any, sets: UnionFind, value: ChannelIds) -> Results:
    axis = eqn.params["axis"]
    axes = sets.pin_others(value, lambda k: k != axis, eqn.primitive.name)
    sizes = [shape_of(v)[axis] for v in eqn.outvars]
    return [ChannelIds((*axes[:axis], fixed(n), *axes[axis + 1 :]), value.weight) for n in sizes]


def dynamic_update_slice_rule(
    eqn: Any, sets: UnionFind, value: ChannelIds, new: ChannelIds, *starts: ChannelIds
) -> Results:
    name = eqn.primitive.name
    whole = [a.size == b.size for a, b in zip(value.axes, new.axes, strict=True)]
    old_axes, new_axes = (sets.pin_others(v, lambda k: whole[k], name) for v in (value, new))
    pairs = zip(whole, old_axes, new_axes, strict=True)
    return [ChannelIds(tuple(sets.union(a, b) if w else a for w, a, b in pairs))]


def gather_rule(eqn: Any, sets: UnionFind, value: ChannelIds, indices: ChannelIds) -> Results:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [k not in dropped and axis.size == sizes[k] for k, axis in enumerate(value.axes)]
    axes = sets.pin_others(value, lambda k: whole[k], eqn.primitive.name)
    sets.pin_others(indices, lambda k: False, eqn.primitive.name)
    result = [fixed(n) for n in shape_of(eqn.outvars[0])]
    remaining = [k for k in range(len(axes)) if k not in dropped]
    for k, position in zip(remaining, numbers.offset_dims, strict=True):
        if whole[k]:
            result[position] = axes[k]
    return [ChannelIds(tuple(result), value.weight)]


def shape_of(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _factors(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
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
