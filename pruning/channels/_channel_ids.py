"""Ids of channels: what an array of a traced program remembers of the channels it is made of.

Every axis of every array carries one id an index. Two ids are united where the program needs both
channels or neither, so a set of united ids is a channel of the network. `FIXED` is the set of all
that cannot be removed; an axis made by broadcasting is `FREE`, and takes the ids of what it is
combined with.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

FREE, FIXED = 0, 1

Vector = np.ndarray


class ChannelIds(NamedTuple):
    """One vector of ids an axis, and what is known of the elements.

    Attributes:
      axes: A vector an axis.
      weight: Parameters, by number: elements are zero wherever these are zero at an id.
      number: The value, of a number of the program.
      nonzero: Whether it is not zero where parameters are.
    """

    axes: tuple[Vector, ...]
    weight: frozenset[int] = frozenset()
    number: float | None = None
    nonzero: bool = False


class Pinned(NamedTuple):
    """Ids that a primitive pinned: its name, and every id of the sets it touched."""

    primitive: str
    ids: Vector


class UnionFind:
    """Disjoint sets of ids, over one array of parents."""

    def __init__(self):
        self.parents = np.arange(2)
        self.pinned: list[Pinned] = []
        self.incoming: list[Vector] = []  # ids of weights that a sum runs over
        self.zeroed: list[tuple[frozenset[int], Vector]] = []  # the parameters that make them zero
        self.singular: list[Vector] = []  # ids of what must not be zero, such as divisors

    def new(self, count: int) -> Vector:
        """`count` ids, each a set of its own."""
        ids = np.arange(self.parents.size, self.parents.size + count)
        self.parents = np.concatenate([self.parents, ids])
        return ids

    def find(self, ids: Vector) -> Vector:
        """The smallest id of the set of each, `FIXED` for what cannot be removed."""
        roots = self.parents[ids]
        while not np.array_equal(above := self.parents[roots], roots):
            roots = above
        self.parents[ids] = roots
        return roots

    def removable(self, ids: Vector) -> bool:
        """Whether any of `ids` may still be removed."""
        return bool((self.find(ids) > FIXED).any())

    def union(self, a: Vector, b: Vector) -> Vector:
        """Unite `a` and `b` index by index; the ids of `a` where it has any, else of `b`."""
        first, second = self.find(a), self.find(b)
        differ = (first != second) & (first != FREE) & (second != FREE)
        for pair in set(zip(first[differ].tolist(), second[differ].tolist(), strict=True)):
            low, high = sorted(self.find(np.array(pair)).tolist())
            self.parents[high] = low
        return np.where(first == FREE, b, a)

    def pin(self, ids: Vector, primitive: str) -> Vector:
        """Make `ids` part of `FIXED`, on account of `primitive`."""
        touched = np.unique(self.find(ids))
        touched = touched[touched > FIXED]
        if touched.size:
            members = np.flatnonzero(np.isin(self.find(np.arange(self.parents.size)), touched))
            self.pinned.append(Pinned(primitive, members))
            self.parents[touched] = FIXED
        return fixed(ids.size)

    def union_all(self, values: Sequence[ChannelIds], shape: Sequence[int]) -> tuple[Vector, ...]:
        """The axes of what combines `values` element by element; scalars and sides of 1 stretch."""

        def united(k: int, n: int) -> Vector:
            axes = (v.axes[k] for v in values if v.axes)
            return reduce(self.union, (axis for axis in axes if axis.size == n), free(n))

        return tuple(united(k, n) for k, n in enumerate(shape))

    def covers(self, value: ChannelIds, axes: Sequence[Vector]) -> bool:
        """Whether `value`, as part of an array of these axes, is zero where parameters of ids are.

        It is not where it is free, or stretched, along an axis that may be removed from.
        """
        if not value.weight or len(value.axes) != len(axes):
            return False
        pairs = zip(axes, value.axes, strict=True)
        return not any(v.size < a.size or is_free(v) for a, v in pairs if self.removable(a))

    def merge(self, axes: Sequence[Vector], primitive: str) -> Vector:
        """The ids of `axes` flattened into one, of which at most one may be removed from."""
        removable = [k for k, axis in enumerate(axes) if self.removable(axis)]
        size = int(np.prod([axis.size for axis in axes]))
        if len(removable) > 1:
            for k in removable:
                self.pin(axes[k], primitive)
            return fixed(size)
        if not removable:
            return free(size) if all(map(is_free, axes)) else fixed(size)
        (k,) = removable
        return np.broadcast_to(_along(axes[k], k, len(axes)), [a.size for a in axes]).ravel()

    def split(self, axis: Vector, sizes: Sequence[int], primitive: str) -> list[Vector]:
        """The ids of `axis` folded into `sizes`; they must vary along one of these only."""
        if is_free(axis):
            return [free(n) for n in sizes]
        grid = self.find(axis).reshape(sizes)
        rest = [fixed(n) if n > 1 else free(n) for n in sizes]
        if not self.removable(axis):
            return rest
        for k, size in enumerate(sizes):
            line = np.moveaxis(grid, k, 0).reshape(size, -1)[:, 0]
            if size > 1 and (grid == _along(line, k, len(sizes))).all():
                return [*rest[:k], line, *rest[k + 1 :]]
        self.pin(axis, primitive)
        return rest

    def pin_others(
        self, value: ChannelIds, untouched: Callable[[int], bool], primitive: str
    ) -> list[Vector]:
        """The axes of `value`, all pinned but the `untouched` ones."""
        return [
            axis if untouched(k) else self.pin(axis, primitive) for k, axis in enumerate(value.axes)
        ]


def free(count: int) -> Vector:
    return np.full(count, FREE)


def fixed(count: int) -> Vector:
    return np.full(count, FIXED)


def is_free(axis: Vector) -> bool:
    return bool((axis == FREE).all())


def _along(vector: Vector, axis: int, ndim: int) -> np.ndarray:
    """`vector` on `axis` of `ndim`, all others of size 1."""
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])
