"""Labels of channels: what an array of a traced program remembers of the channels it is made of.

Every axis of every array carries one label an index. Two labels are joined where the program needs
both channels or neither, so a set of joined labels is what goes together. `FIXED` is the set of
all that must stay; an axis made by broadcasting is `FREE`, and takes the labels of what it meets.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

FREE, FIXED = 0, 1

Vector = np.ndarray


class Labels(NamedTuple):
    """One vector of labels an axis; `weight`: zero wherever the parameters of a label are zero."""

    axes: tuple[Vector, ...]
    weight: bool = False


class Cut(NamedTuple):
    """Labels that a primitive fixed: its name, and every label of the sets it touched."""

    primitive: str
    labels: Vector


class Joins:
    """Disjoint sets of labels, joined by union-find over one array of parents."""

    def __init__(self):
        self.parents = np.arange(2)
        self.cuts: list[Cut] = []
        self.incoming: list[Vector] = []  # labels of weights that a sum runs over

    def new(self, count: int) -> Vector:
        """`count` labels, each alone."""
        labels = np.arange(self.parents.size, self.parents.size + count)
        self.parents = np.concatenate([self.parents, labels])
        return labels

    def roots(self, labels: Vector) -> Vector:
        """The smallest label of the set of each, `FIXED` for what must stay."""
        found = self.parents[labels]
        while not np.array_equal(above := self.parents[found], found):
            found = above
        self.parents[labels] = found
        return found

    def removable(self, labels: Vector) -> bool:
        """Whether any of `labels` may still be removed."""
        return bool((self.roots(labels) > FIXED).any())

    def join(self, a: Vector, b: Vector) -> Vector:
        """Join `a` and `b` index by index; the labels of `a` where it has any, else of `b`."""
        first, second = self.roots(a), self.roots(b)
        differ = (first != second) & (first != FREE) & (second != FREE)
        for pair in set(zip(first[differ].tolist(), second[differ].tolist(), strict=True)):
            low, high = sorted(self.roots(np.array(pair)).tolist())
            self.parents[high] = low
        return np.where(first == FREE, b, a)

    def fix(self, labels: Vector, primitive: str) -> Vector:
        """Make `labels` stay, on account of `primitive`."""
        touched = np.unique(self.roots(labels))
        touched = touched[touched > FIXED]
        if touched.size:
            members = np.flatnonzero(np.isin(self.roots(np.arange(self.parents.size)), touched))
            self.cuts.append(Cut(primitive, members))
            self.parents[touched] = FIXED
        return fixed(labels.size)

    def join_all(self, values: Sequence[Labels], shape: Sequence[int]) -> tuple[Vector, ...]:
        """The axes of what combines `values` element by element; scalars and sides of 1 stretch."""

        def together(k: int, n: int) -> Vector:
            met = (v.axes[k] for v in values if v.axes)
            return reduce(self.join, (axis for axis in met if axis.size == n), free(n))

        return tuple(together(k, n) for k, n in enumerate(shape))

    def merge(self, axes: Sequence[Vector], primitive: str) -> Vector:
        """The labels of `axes` flattened into one, of which at most one may be removed from."""
        removable = [k for k, axis in enumerate(axes) if self.removable(axis)]
        size = int(np.prod([axis.size for axis in axes]))
        if len(removable) > 1:
            for k in removable:
                self.fix(axes[k], primitive)
            return fixed(size)
        if not removable:
            all_free = all((axis == FREE).all() for axis in axes)
            return free(size) if all_free else fixed(size)
        (k,) = removable
        return np.broadcast_to(_along(axes[k], k, len(axes)), [a.size for a in axes]).ravel()

    def split(self, axis: Vector, sizes: Sequence[int], primitive: str) -> list[Vector]:
        """The labels of `axis` folded into `sizes`; they must vary along one of these only."""
        if (axis == FREE).all():
            return [free(n) for n in sizes]
        grid = self.roots(axis).reshape(sizes)
        rest = [fixed(n) if n > 1 else free(n) for n in sizes]
        if not self.removable(axis):
            return rest
        for k, size in enumerate(sizes):
            line = np.moveaxis(grid, k, 0).reshape(size, -1)[:, 0]
            if size > 1 and (grid == _along(line, k, len(sizes))).all():
                return [*rest[:k], line, *rest[k + 1 :]]
        self.fix(axis, primitive)
        return rest

    def without(self, value: Labels, keep: Callable[[int], bool], primitive: str) -> list[Vector]:
        """The axes of `value`, those that `keep` names as they are, the others made to stay."""
        return [axis if keep(k) else self.fix(axis, primitive) for k, axis in enumerate(value.axes)]


def free(count: int) -> Vector:
    return np.full(count, FREE)


def fixed(count: int) -> Vector:
    return np.full(count, FIXED)


def _along(vector: Vector, axis: int, ndim: int) -> np.ndarray:
    """`vector` on `axis` of `ndim`, all others of size 1."""
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])
