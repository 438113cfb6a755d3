"""Channel ids, which say to which channel each element of an array of a program belongs.

Every axis of every array has one id for each index. Two ids are united if the program needs both
channels or neither, so a set of united ids is a channel of the network. `FIXED` is the set of all
ids that cannot be removed. An axis that a broadcast makes is `FREE`, and takes the ids of the array
with which it is combined.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import numpy as np

from pruning.channels._program.calls import Equation
from pruning.channels._program.lines import at, line_of

FREE, FIXED = 0, 1
NO_CHANNEL = -2
"""In place of a reason for which ids are pinned."""

Vector = np.ndarray
Zero = frozenset[tuple[int, ...]] | None
"""Parameters, by number, that make an array zero: one of each tuple; None if it need not be zero.

A sum of several arrays has the tuples of all, and a product has tuples of several parameters.
"""
MAX_TUPLES = 256  # of a product of sums, which has a tuple for each choice of one term per sum


class ChannelIds(NamedTuple):
    """One vector of ids for each axis of an array, and facts about its elements.

    Attributes:
      axes: One vector of ids for each axis.
      zero: The parameters on which zeros depend. If one parameter of each tuple is zero at removed
        channels, the elements are zero at every removable id of any axis. `zero` is None if
        elements need not be zero.
      number: The value, if it is a number in the program.
      nonzero: Whether the elements are nonzero where parameters are nonzero.
      at_zero: The value at removed channels, if numbers alone decide it and `zero` does not.
      given: Whether the value is computed from parameters and constants only, like a weight.
      constant: Whether the value is computed from constants only, like a table of angles, or from
        random bits.
      uniform: The parameters on which equal elements depend, as for `zero`. Then, along every axis,
        the elements are equal at all removable ids.
      drawn: The equations that drew the random bits of the value, outermost first.
    """

    axes: tuple[Vector, ...]
    zero: Zero = None
    number: float | None = None
    nonzero: bool = False
    at_zero: float | None = None
    given: bool = False
    constant: bool = False
    uniform: Zero = None
    drawn: tuple[Equation, ...] = ()


Values = Sequence[ChannelIds]
"""The ids of the operands of an equation, of its results, or of the arguments of a program."""


class Pinned(NamedTuple):
    """The cause that pins ids: an equation, or an input or output of the program.

    `equations` holds the equation at the end; the calls, branches and loops around it come before,
    outermost first. `axes` holds the numbers of the axes of parameters that have pinned ids. `new`
    holds those `axes` whose ids no equation of this kind pinned before. `normed` says that the
    equation pins ids only if the model itself runs with fewer channels. A normed equation either
    sums over activations, as a norm does, and would divide by another width, or has a constant that
    varies along the channels. `name` is the name and path of the input or output, if no equation
    pins the ids.
    """

    equations: tuple[Equation, ...]
    axes: Vector
    new: Vector
    normed: bool
    name: tuple[str, str] | None = None


class Requirement(NamedTuple):
    """Ids at which a value must be zero, uniform or nonzero, and the parameters that ensure this.

    The last of `equations` has the requirement. `given` means the same as in `ChannelIds`.
    """

    ids: Vector
    parameters: Zero
    given: bool
    equations: tuple[Equation, ...]


class UnionFind:
    """Disjoint sets of ids, over one array of parents."""

    def __init__(self):
        self.parents = np.arange(2)
        self.owners = np.full(2, -1)  # for each id of a parameter: the number of its axis
        self.reasons = np.full(2, -1)  # for each pinned id: the number of its cause in `pinned`
        self.equations: tuple[Equation, ...] = ()  # equations that are being read, outermost first
        # For each axis of a loop's state: the equations around it, and its ids.
        self.states: dict[tuple[int, ...], tuple[tuple[Equation, ...], Vector]] = {}
        self.long_folds: set[int] = set()  # equations whose results vary along the longest axis
        self.settled = False  # true after a program was read: from then on, free ids remain free
        # set when channels are removed: for each root, whether it is removed
        self.removed = np.zeros(0, bool)
        self.pinned: list[Pinned] = []
        # ids over which a sum of activations runs, or along which a constant varies
        self.normed = fixed(0)
        self.incoming: list[Vector] = []  # ids of weights along axes over which a sum runs
        self.zeroed: list[Requirement] = []  # values that must be zero, because sums drop them
        self.singular: list[Requirement] = []  # values that must not be zero, such as divisors

    def new(self, count: int) -> Vector:
        """Make `count` new ids, each in its own set."""
        return self.of_axes([count], owned=False)[0]

    @contextmanager
    def inside(self, eqn: Equation) -> Iterator[None]:
        """Makes `eqn` the innermost equation that is being read."""
        outer = self.equations
        if not outer or outer[-1] is not eqn:
            self.equations = (*outer, eqn)
        yield
        self.equations = outer

    def of_axes(self, counts: Sequence[int], *, owned: bool = True) -> list[Vector]:
        """New ids for axes of these sizes, each in its own set; `owned` for axes of parameters."""
        start, count = self.parents.size, sum(counts)
        ids = np.arange(start, start + count)
        owners = np.repeat(np.arange(len(counts)), counts) if owned else np.full(count, -1)
        self.parents = np.concatenate([self.parents, ids])
        self.owners = np.concatenate([self.owners, owners])
        self.reasons = np.concatenate([self.reasons, np.full(count, -1)])
        return np.split(ids, np.cumsum(counts)[:-1]) if counts else []

    def find(self, ids: Vector) -> Vector:
        """The smallest id in the set of each id; `FIXED` for ids that cannot be removed."""
        roots = self.parents[ids]
        while not np.array_equal(above := self.parents[roots], roots):
            self.parents[roots] = self.parents[above]
            roots = above
        self.parents[ids] = roots
        return roots

    def roots(self) -> Vector:
        """The result of `find` for every id."""
        while not np.array_equal(above := self.parents[self.parents], self.parents):
            self.parents = above
        return self.parents

    def removable(self, ids: Vector) -> bool:
        """Whether any of `ids` may still be removed."""
        return bool((self.find(ids) > FIXED).any())

    def union(self, a: Vector, b: Vector) -> Vector:
        """Unite `a` and `b` index by index; return the ids of `a`, or of `b` if `a` is free."""
        first, second = self.find(a), self.find(b)
        differ = (first != second) & (first != FREE) & (second != FREE)
        if differ.any():
            self._note_pinned(*(ids[differ] for ids in (a, b, first, second)))
        low, high = first[differ], second[differ]
        while low.size:  # if an id is united with several others, the smallest comes first
            low, high = np.minimum(low, high), np.maximum(low, high)
            descending = np.argsort(-low)
            self.parents[high[descending]] = low[descending]
            low, high = self.find(low), self.find(high)
            low, high = low[low != high], high[low != high]
        return np.where(first == FREE, b, a)

    def _note_pinned(self, a: Vector, b: Vector, first: Vector, second: Vector) -> None:
        """Note the cause of newly pinned ids, before `a` and `b` with these roots are united."""
        if self.settled:
            self._check_kept(first, second)
            return
        pinned, others = np.where(first == FIXED, a, b), np.where(first == FIXED, second, first)
        met = (first == FIXED) | (second == FIXED)
        for reason in np.unique(self.reasons[pinned[met]]).tolist():
            of_reason = others[met & (self.reasons[pinned] == reason)]
            by = self.pinned[reason] if reason >= 0 else None
            self.report(of_reason, by.equations if by else (), name=by.name if by else None)

    def pin(
        self, ids: Vector, equations: tuple[Equation, ...] = (), name: tuple[str, str] | None = None
    ) -> Vector:
        """Make `ids` part of `FIXED` because of equations, by default the current equations."""
        if self.settled:
            self._check_kept(self.find(ids), np.full(ids.size, FIXED))
            return ids
        self.report(ids, equations, name=name)
        roots = self.find(ids)
        self.parents[roots[roots > FIXED]] = FIXED
        return np.where(roots == FREE, FIXED, ids)

    def new_pinned(self, count: int, name: tuple[str, str] | None = None) -> Vector:
        """New ids that are not channels, and that pin every channel that is united with them.

        The reason is the input `name`, or the current equation.
        """
        return fixed(count) if self.settled else np.repeat(self.pin(self.new(1), name=name), count)

    def pin_like(self, axes: Sequence[Vector], count: int) -> Vector:
        """New ids that are pinned by the same cause as one of `axes`."""
        ids = np.concatenate([fixed(1), *axes])
        return np.repeat(ids[np.argmax(self.reasons[ids] >= 0)], count)

    def fix(self, ids: Vector) -> None:
        """Make `ids` part of `FIXED`, because they are no channels but, say, a window's offsets."""
        if not self.settled:
            roots = self.find(ids)
            self.reasons[ids[roots > FIXED]] = NO_CHANNEL
            self.parents[roots[roots > FIXED]] = FIXED

    def report(
        self,
        ids: Vector,
        equations: tuple[Equation, ...] = (),
        *,
        normed: bool = False,
        name: tuple[str, str] | None = None,
    ) -> None:
        """Note which sets of `ids` are pinned, by equations or by the input or output `name`."""
        roots = self.find(ids)
        if self.settled or not (roots > FIXED).any():
            return
        every = self.roots()
        members = self.mask_of(roots[roots > FIXED])[every]
        new = members & ~self.mask_of(self.find(self.normed))[every]
        axes, of_new = (distinct(self.owners[mask]) for mask in (members, new))
        self.pinned.append(Pinned(equations or self.equations, axes, of_new, normed, name))
        if normed:
            self.normed = np.concatenate([self.normed, ids])
        else:
            self.reasons[members] = len(self.pinned) - 1

    def mask_of(self, ids: Vector) -> Vector:
        """A mask over all ids that is true at `ids`."""
        mask = np.zeros(self.parents.size, bool)
        mask[ids] = True
        return mask

    def _check_kept(self, first: Vector, second: Vector) -> None:
        """Raise if the current equation unites a removed channel with a kept channel."""
        if not self.removed.size:
            return
        # a later id takes the id with which it is united
        old = np.maximum(first, second) < self.removed.size
        if (self.removed[first[old]] != self.removed[second[old]]).any():
            name = self.equations[-1].primitive.name if self.equations else "apply"
            raise ValueError(
                f"groups must hold only channels that this program does not need; its {name} "
                f"needs removed channels{at(line_of(self.equations))}"
            )

    def union_all(self, values: Values, shape: Sequence[int]) -> tuple[Vector, ...]:
        """The axes of an elementwise result of `values`; scalars and axes of size 1 broadcast."""

        def united(k: int, n: int) -> Vector:
            axes = (v.axes[k] for v in values if v.axes)
            return reduce(self.union, (axis for axis in axes if axis.size == n), free(n))

        return tuple(united(k, n) for k, n in enumerate(shape))

    def zero_at(self, value: ChannelIds, axes: Sequence[Vector]) -> Zero:
        """The parameters that must be zero to make `value` zero at `axes` of a larger array.

        The result is None if elements need not be zero there, because the array is free or
        stretched along a removable axis. Without removable channels, the set of parameters is
        empty.
        """
        if value.number == 0 or not any(map(self.removable, axes)):
            return frozenset()
        if value.zero is None or len(value.axes) != len(axes):
            return None
        pairs = zip(axes, value.axes, strict=True)
        stretched = any(v.size < a.size or is_free(v) for a, v in pairs if self.removable(a))
        return None if stretched else value.zero

    def all_zero(self, values: Values, axes: Sequence[Vector]) -> Zero:
        """The parameters that must be zero to make all of `values` zero at ids of `axes`."""
        return together([self.zero_at(value, axes) for value in values])

    def any_zero(self, values: Values, axes: Sequence[Vector]) -> Zero:
        """The parameters that must be zero to make the product of `values` zero at `axes`."""
        zeros = (self.zero_at(value, axes) for value in values)
        return reduce(_either, (zero for zero in zeros if zero is not None), None)

    def uniform(self, values: Values) -> Zero:
        """The parameters that must be zero to make `values` equal along removable channels."""

        def one(value: ChannelIds) -> Zero:
            varies = value.zero is None and any(map(self.removable, value.axes))
            return value.uniform if varies else value.zero or frozenset()

        return together(map(one, values))

    def requirement_of(self, value: ChannelIds, ids: Vector) -> Requirement:
        """The requirement that `value` is zero, or else uniform, at ids of an axis."""
        parameters = value.uniform if value.zero is None else value.zero
        return Requirement(ids, parameters, value.given, self.equations)

    def merge(self, axes: Sequence[Vector]) -> Vector:
        """The ids of `axes` flattened into one axis; the ids vary along one of these axes."""
        size = int(np.prod([axis.size for axis in axes]))
        removable = [k for k, axis in enumerate(axes) if self.removable(axis)]
        removable = [k for k in removable if axes[k].size > 1] or removable
        if not removable:
            return free(size) if all(map(is_free, axes)) else self.pin_like(axes, size)
        left = removable[-2:][0]
        for k in removable:
            if k != left:
                self.pin(axes[k])
        inner = int(np.prod([axis.size for axis in axes[left + 1 :]]))
        return np.resize(np.repeat(axes[left], inner), size)

    def split_axis(self, axis: Vector, sizes: Sequence[int]) -> list[Vector]:
        """The ids of `axis`, reshaped to `sizes` and united until they vary along one axis only.

        If the ids could vary along several axes, the last but one is chosen. An example is an axis
        of heads and widths. If channels are reshaped into feature maps or shuffled, the longest
        axis is chosen.
        """
        if is_free(axis):
            return [free(n) for n in sizes]
        rest = [self.pin_like([axis], n) if n > 1 else free(n) for n in sizes]
        if not self.removable(axis) or not rest:
            return rest
        grid = self.find(axis).reshape(sizes)
        varying = [k for k in range(len(sizes)) if (grid != grid.take([0], k)).any()]
        if not varying or id(self.equations[-1]) in self.long_folds:
            varying = [max(varying or range(len(sizes)), key=lambda k: sizes[k])]
        k = varying[-2:][0]
        line, *others = np.moveaxis(grid, k, 0).reshape(sizes[k], -1).T
        for other in others:
            if not np.array_equal(line, other):
                self.union(line, other)
        return [*rest[:k], self.find(line), *rest[k + 1 :]]

    def give_constants_ids(self, values: Values) -> list[ChannelIds]:
        """`values`, in which constants get the ids of the channels along which they vary.

        The model has these constants at the large width only. `resized` cuts these constants to the
        remaining channels.
        """
        found = list(values)
        for i, constant in enumerate(values):
            axes = list(constant.axes) if constant.constant else []
            for k, axis in enumerate(axes):
                beside = (v.axes[k] for v in values if v.axes and not v.constant)
                channels = [ids for ids in beside if ids.size == axis.size and self.removable(ids)]
                if channels and not is_free(axis):
                    self.report(channels[0], constant.drawn, normed=True)
                    axes[k] = channels[0]
            if constant.constant:
                found[i] = constant._replace(axes=tuple(axes), zero=None, uniform=None)
        return found

    def pin_others(self, value: ChannelIds, untouched: Callable[[int], bool]) -> list[Vector]:
        """The axes of `value`, after all axes except the `untouched` axes are pinned."""
        return [axis if untouched(k) else self.pin(axis) for k, axis in enumerate(value.axes)]


def distinct(numbers: Vector) -> Vector:
    """The distinct values of many small nonnegative numbers."""
    return np.flatnonzero(np.bincount(numbers + 1)[1:])


def together(zeros: Iterable[Zero]) -> Zero:
    """The parameters that must be zero to make all arrays zero; None if one may be nonzero."""
    sets = list(zeros)
    return None if None in sets else _shortest(frozenset().union(*filter(None, sets)))


def _either(first: Zero, second: frozenset[tuple[int, ...]]) -> Zero:
    """The parameters that must be zero to make one of two arrays zero."""
    if first is None or second <= first:
        return second
    if first <= second or len(first) * len(second) > MAX_TUPLES:
        return first
    return _shortest(frozenset(tuple(dict.fromkeys(a + b)) for a in first for b in second))


def _shortest(zero: frozenset[tuple[int, ...]]) -> frozenset[tuple[int, ...]]:
    """`zero` without the tuples that hold all parameters of another tuple."""
    if len(set(map(len, zero))) < 2:
        return zero
    found: list[tuple[int, ...]] = []
    for one in sorted(zero, key=lambda one: (len(one), one)):
        if not any(set(one).issuperset(shorter) for shorter in found):
            found.append(one)
    return frozenset(found)


def free(count: int) -> Vector:
    return np.full(count, FREE)


def fixed(count: int) -> Vector:
    return np.full(count, FIXED)


def is_free(axis: Vector) -> bool:
    return bool((axis == FREE).all())
