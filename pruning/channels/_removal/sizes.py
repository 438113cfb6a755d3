"""Computes the shapes of a traced program after channels were removed from its parameters."""

from collections.abc import Sequence

import jax
import numpy as np

from pruning.channels._coupling.channel_ids import FREE, ChannelIds, Values, Vector
from pruning.channels._coupling.coupling import TracedChannels
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._coupling.moves import sizes
from pruning.channels._coupling.rules import corresponding_axes, rule_of
from pruning.channels._program.calls import Equation, Leaf, Options, Tree
from pruning.channels._removal.removal import KeepMasks, check_smaller

Shape = tuple[int, ...]


def large_tree(params: Tree, groups: Sequence[ChannelGroup], keep: Sequence[np.ndarray]) -> Tree:
    """The shapes of the arrays before removal, in a tree with the structure of `params`.

    Raises:
      ValueError: The arrays of `params` do not have the shapes after removal.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = groups[0].parameters.shapes if groups else [np.shape(leaf) for leaf in leaves]
    check_smaller(params, groups, keep)
    pairs = zip(shapes, leaves, strict=True)
    large = [struct(n, leaf) if n else leaf for n, leaf in pairs]
    return jax.tree.unflatten(structure, large)


def struct(shape: Shape, like: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an array that has the given shape, and the dtype and weak type of `like`."""
    aval = jax.typeof(like)
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)


class Sizes:
    """Computes shapes of a program's arrays without the channels that `masks` remove."""

    def __init__(self, channels: TracedChannels, masks: KeepMasks):
        self.sets, paths = channels.sets, channels.parameters.paths
        removed = np.zeros(self.sets.parents.size, bool)
        read = {(paths[i], axis) for i, axis in channels.axes}
        for (path, axis), mask in masks.items():
            if (path, axis) not in read:  # the program does not use the array
                continue
            ids = channels.ids_of(path, axis)[~mask]
            channels.check_removable(ids)
            removed[self.sets.find(ids)] = True
        self.sets.removed = removed
        for i, axis in channels.axes:
            ids, mask = channels.ids_of(paths[i], axis), masks.get((paths[i], axis), True)
            if not np.array_equal(self.remain(ids), np.broadcast_to(mask, ids.shape)):
                raise ValueError(
                    "groups must come from this program; the program couples channels of axis "
                    f"{axis} of {paths[i]} with removed channels"
                )

    def shape(self, ids: ChannelIds) -> Shape:
        """The shape of an array with the given channel ids, without removed channels."""
        return sizes(self.remain, ids)

    def remain(self, ids: Vector) -> Vector:
        """For each channel id, whether its channel remains after removal.

        The channel of an id that is newer than the masks, such as an id of a loop's state, remains
        unless the id is united with an id of a removed channel.
        """
        roots, removed = self.sets.find(ids), self.sets.removed
        return ~removed[np.where(roots < removed.size, roots, FREE)]

    def tables(self, eqn: Equation, arrays: Sequence[Leaf], values: Values) -> list[Leaf]:
        """The operands of an equation for the smaller network.

        If the equation is elementwise, its constants are cut to the remaining channels.
        """
        if not rule_of(eqn).elementwise:
            return list(arrays)
        triples = zip(arrays, values, self.sets.give_constants_ids(values), strict=True)
        return [self.cut(x, new) if value.constant else x for x, value, new in triples]

    def cut(self, array: Leaf, value: ChannelIds) -> Leaf:
        """An array of the large program, cut to the remaining channels."""
        for axis, ids in enumerate(value.axes):
            if not (remain := self.remain(ids)).all():
                array = array.take(np.flatnonzero(remain), axis=axis)
        return array

    def params(self, eqn: Equation, values: Values, results: Values) -> Options:
        """The parameters of an equation for the smaller operands and results."""
        smaller = rule_of(eqn).smaller
        return {**eqn.params, **(smaller(eqn, self.remain, values, results) if smaller else {})}


def first(array: Leaf, shape: Shape) -> Leaf:
    """The first `shape[k]` elements of an array along each of its axes k.

    Along a free axis, all elements are equal, so it does not matter which elements remain.
    """
    return array[tuple(slice(n) for n in shape)] if np.shape(array) != shape else array


def trim_broadcast(eqn: Equation, arrays: Sequence[Leaf], shape: Shape) -> list[Leaf]:
    """Cut the operands to the size of the result along axes that correspond to axes of the result.

    Along broadcast axes, operands still have the size before removal. Along a summed axis, only a
    factor that is 0 can have this size, such as the first state of an RNN. The factor is cut to the
    size of the other factor.
    """
    summed = rule_of(eqn).summed
    smallest = {
        (k, axis): min(np.shape(arrays[i])[j] for i, j in pair)
        for pair in (summed(eqn) if summed else ())
        for k, axis in pair
    }

    def trim(k: int, x: Leaf, axes: Sequence[int | None]) -> Leaf:
        sizes = enumerate(zip(np.shape(x), axes, strict=True))
        own = ((smallest.get((k, i), n) if j is None else min(n, shape[j])) for i, (n, j) in sizes)
        return first(x, tuple(own))

    return list(map(trim, range(len(arrays)), arrays, corresponding_axes(eqn)))
