"""Shapes of a traced program without the channels that were removed from its parameters."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pruning.channels._coupling.channel_ids import ChannelIds, Vector
from pruning.channels._coupling.coupling import TracedChannels
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._coupling.rules import ELEMENTWISE
from pruning.channels._coupling.shape_rules import SCATTERS, windows
from pruning.channels._removal.removal import KeepMasks

Shape = tuple[int, ...]
SAME_SHAPE = {*ELEMENTWISE.split(), "concatenate", "dynamic_update_slice", "sort"}


def large_tree(params: Any, groups: Sequence[ChannelGroup]) -> Any:
    """The shapes of the tree that the groups were read from, in the structure of `params`."""
    leaves, structure = jax.tree.flatten(params)
    shapes = groups[0].parameters.shapes if groups else [np.shape(leaf) for leaf in leaves]
    pairs = zip(shapes, leaves, strict=True)
    large = [jax.ShapeDtypeStruct(n, leaf.dtype) if n else leaf for n, leaf in pairs]
    return jax.tree.unflatten(structure, large)


class Sizes:
    """The sizes of all arrays of a program without the channels that `masks` do not keep."""

    def __init__(self, channels: TracedChannels, masks: KeepMasks):
        self.sets, paths = channels.sets, channels.parameters.paths
        removed = np.zeros(self.sets.parents.size, bool)
        for (path, axis), mask in masks.items():
            ids = channels.arguments[paths.index(path)].axes[axis][~mask]
            channels.check_removable(ids)
            removed[self.sets.find(ids)] = True
        self.sets.removed = removed
        for i, axis in channels.axes:
            ids, mask = channels.arguments[i].axes[axis], masks.get((paths[i], axis), True)
            if not np.array_equal(self.remain(ids), np.broadcast_to(mask, ids.shape)):
                raise ValueError(
                    "groups must be those of this program; it couples channels of axis "
                    f"{axis} of {paths[i]} with some that were removed"
                )

    def shape(self, ids: ChannelIds) -> Shape:
        """The shape of an array of these ids."""
        return tuple(int(self.remain(axis).sum()) for axis in ids.axes)

    def remain(self, ids: Vector) -> Vector:
        """Which ids are not removed; those of a loop's state, made anew, by what they are now."""
        return ~self.sets.is_removed(ids)

    def tables(self, eqn: Any, arrays: Sequence[Any], values: Sequence[ChannelIds]) -> list[Any]:
        """The operands, of which constants that vary along channels are those of what is left."""
        if eqn.primitive.name not in ELEMENTWISE.split():
            return list(arrays)
        return list(map(self._table, arrays, values, self.sets.tabled(values)))

    def _table(self, array: Any, before: ChannelIds, after: ChannelIds) -> Any:
        for k, (old, new) in enumerate(zip(before.axes, after.axes, strict=True)):
            if old is not new:
                array = self.cut(array, k, new)
        return array

    def cut(self, array: Any, axis: int, ids: Vector) -> Any:
        """What is left of an array along an axis of these ids."""
        remain = self.remain(ids)
        return array if remain.all() else array.take(np.flatnonzero(remain), axis=axis)

    def params(
        self, eqn: Any, values: Sequence[ChannelIds], results: Sequence[ChannelIds]
    ) -> dict[str, Any]:
        """The parameters of a primitive, with the shapes of smaller operands and results."""
        params, shapes = dict(eqn.params), list(map(self.shape, results))
        match eqn.primitive.name:
            case "broadcast_in_dim":
                params["shape"] = shapes[0]
            case "reshape":
                params["new_sizes"] = shapes[0]
            case "dynamic_slice":
                params["slice_sizes"] = shapes[0]
            case "slice":
                params |= self.bounds(params, values[0], shapes[0])
            case "split":
                params["sizes"] = tuple(shape[params["axis"]] for shape in shapes)
            case "gather":
                axes = zip(params["slice_sizes"], values[0].axes, strict=True)
                sizes = ((n, a, int(self.remain(a).sum())) for n, a in axes)
                params["slice_sizes"] = tuple(new if n == a.size else n for n, a, new in sizes)
            case "conv_general_dilated":
                features = params["dimension_numbers"].lhs_spec[1]
                if params["feature_group_count"] == values[0].axes[features].size:  # depthwise
                    params["feature_group_count"] = self.shape(values[0])[features]
        return params

    def bounds(self, params: dict[str, Any], value: ChannelIds, shape: Shape) -> dict[str, Shape]:
        """The bounds of a slice, whose result has this shape, among the channels that are left."""
        starts = params["start_indices"]
        strides = params["strides"] or (1,) * len(starts)
        small = tuple(
            int(self.remain(axis[:start]).sum()) if stride == 1 else start
            for axis, start, stride in zip(value.axes, starts, strides, strict=True)
        )
        sizes = zip(small, strides, shape, strict=True)
        limits = tuple(start + max((n - 1) * stride + 1, 0) for start, stride, n in sizes)
        return {"start_indices": small, "limit_indices": limits}


def operand_axes(eqn: Any, axis: int) -> list[int | None]:
    """The axis of each operand that an axis of the result is, if it is one of that operand."""
    if eqn.primitive.name == "transpose":
        return [int(eqn.params["permutation"][axis])]
    if eqn.primitive.name != "dot_general":
        return [axis if v.aval.ndim else None for v in eqn.invars]
    contracted, batch = eqn.params["dimension_numbers"]
    a, b = (
        [k for k in range(v.aval.ndim) if k not in (*summed, *shared)]
        for v, summed, shared in zip(eqn.invars, contracted, batch, strict=True)
    )
    of_a, of_b = [*map(int, batch[0]), *a, *(None for _ in b)], [*map(int, batch[1])]
    of_b += [*(None for _ in a), *b]
    return [of_a[axis], of_b[axis]]


def first(array: Any, shape: Shape) -> Any:
    """As many indices of each axis as `shape` has: the rest of a constant that was broadcast."""
    return array[tuple(slice(n) for n in shape)] if np.shape(array) != shape else array


def fitted(eqn: Any, arrays: Sequence[Any], shape: Shape) -> list[Any]:
    """The operands, of which an axis that was broadcast may be longer than the one beside it."""
    if eqn.primitive.name == "dot_general":
        a, b = (list(np.shape(x)) for x in arrays)
        _, batch = eqn.params["dimension_numbers"]
        for i, j in zip(*batch, strict=True):
            a[i] = b[j] = min(a[i], b[j])
        return [first(x, tuple(n)) for x, n in zip(arrays, (a, b), strict=True)]
    if eqn.primitive.name in SCATTERS.split():
        return _fitted_windows(eqn, arrays, shape)
    if eqn.primitive.name == "stack":
        new = eqn.params["axis"]
        return [first(x, (*shape[:new], *shape[new + 1 :])) for x in arrays]
    if eqn.primitive.name not in SAME_SHAPE:
        return list(arrays)
    large = eqn.outvars[0].aval.shape

    def target(x: Any, old: Shape) -> Shape:
        sizes = zip(np.shape(x), old, shape, large, strict=True)
        return tuple(new if before == after else n for n, before, new, after in sizes)

    pairs = zip(arrays, (v.aval.shape for v in eqn.invars), strict=True)
    return [first(x, target(x, old)) if len(old) == len(large) else x for x, old in pairs]


def _fitted_windows(eqn: Any, arrays: Sequence[Any], shape: Shape) -> list[Any]:
    """The operands of a scatter, what is written as wide as what it is written into."""
    value, indices, new = arrays
    sizes = list(np.shape(new))
    for k, j in windows(eqn).items():
        sizes[j] = shape[k]
    return [first(value, shape), indices, first(new, tuple(sizes))]
