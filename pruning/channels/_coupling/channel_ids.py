"""Channel ids are numbers that say to which channel each index along an axis of an array belongs.

Every axis of every array of a program has one id for each index. Two ids are united if their
channels can only be removed together. Therefore a set of united ids is a channel of the network.
`FIXED` is the set of all ids whose channels cannot be removed. Ids in `FIXED` are called pinned.
The ids of an axis that a broadcast creates are `FREE`. If an array with a free axis is later
combined with another array, the free axis gets the ids of the other array.
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
"""The entry of `UnionFind.reasons` for pinned ids that belong to no channel."""

Vector = np.ndarray
Zero = frozenset[tuple[int, ...]] | None
"""The parameters that, if zero, make an array zero, as tuples of the parameters' numbers.

The array is zero if at least one parameter of each tuple is zero. None means that the array may be
nonzero.

For a sum, the set contains the tuples of all terms. For a product, each tuple of one factor is
joined with each tuple of the other factor.
"""
# A product has at most this number of tuples. Without the limit, a product of k sums of two terms
# would have 2ᵏ tuples.
MAX_TUPLES = 256


class ChannelIds(NamedTuple):
    """The channel ids of an array, one vector for each axis, and facts about the array's elements.

    Attributes:
      axes: One vector of channel ids for each axis.
      zero: The parameters that must be zero to make elements zero, as tuples. If one parameter or
        more of each tuple is zero at removed channels, the array is zero at the removed channels
        along every axis. `zero` is None if elements at removed channels may be nonzero.
      number: The value of the array, if the array is a constant number in the traced program.
      nonzero: Whether the elements are nonzero if the parameters are nonzero.
      positive: Whether the elements are positive for any parameters, such as exp(x).
      at_zero: The value of the elements at removed channels, if this value depends only on numbers
        in the program.
      given: Whether the array is computed only from parameters and constants, like a weight.
      chosen: Whether the array is selected among weights by an index that depends on the data, as a
        router selects the kernel of an expert.
      constant: Whether the array is computed from constants only, like a table of angles, or from
        random bits.
      uniform: The parameters that must be zero to make elements equal, as tuples in the format of
        `zero`. If one parameter of each tuple is zero at removed channels, the elements at all
        removed channels of an axis are equal.
      drawn: The equations that drew the random bits from which the array is computed, outermost
        first.
    """

    axes: tuple[Vector, ...]
    zero: Zero = None
    number: float | None = None
    nonzero: bool = False
    positive: bool = False
    at_zero: float | None = None
    given: bool = False
    chosen: bool = False
    constant: bool = False
    uniform: Zero = None
    drawn: tuple[Equation, ...] = ()


Values = Sequence[ChannelIds]
"""The channel ids of the operands of an equation, of its results, or of a program's arguments."""


class Pinned(NamedTuple):
    """The reason why channel ids are pinned: an equation, or an input or output of the program.

    The last of `equations` pins the ids. The tuple `equations` begins with the calls, branches and
    loops around the last equation, outermost first. `axes` lists the axes of parameters that have
    pinned ids, and `new` lists the axes in `axes` with an id that was not `normed` before. If
    `normed` is true, only `resized` can run the model without these channels, because the equation
    sums over activations, as a norm does, or has a constant that varies along the channels. If an
    input or output of the program pins the ids, `name` is the name and path of the input or output.
    """

    equations: tuple[Equation, ...]
    axes: Vector
    new: Vector
    normed: bool
    name: tuple[str, str] | None = None


class Requirement(NamedTuple):
    """The requirement that an array is zero, nonzero or uniform (all equal) at the channels `ids`.

    `parameters` are the parameters that make the array zero or uniform. The last of `equations` is
    the equation with the requirement. `given` has the same meaning as in `ChannelIds`. If a product
    sums over an axis of a weight, `incoming` has the numbers of the parameters' axes that form this
    axis. For other arrays, `incoming` is None. If the array must be nonzero, `finite` says whether
    the result is finite even if the parameters are zero. For example, the array may be under a
    root, or may always be positive, such as a sum of exp(x).
    """

    ids: Vector
    parameters: Zero
    given: bool
    equations: tuple[Equation, ...]
    incoming: frozenset[int] | None = None
    finite: bool = False


class Split(NamedTuple):
    """Facts that determine along which axis the channels lie after a reshape has split their axis.

    Attributes:
      longest: Whether the reshape shuffles channels or makes the feature maps of a convolution. If
        so, the channels are along the longest of the new axes.
      pinned: The new axes along which later equations read a single index or a maximum, such as an
        axis of size 2 for a gate and a value. The channels are along a new axis that is not pinned,
        because channels along pinned axes could not be removed.
    """

    longest: bool = False
    pinned: frozenset[int] = frozenset()


class UnionFind:
    """Disjoint sets of channel ids, stored as one array of parents."""

    def __init__(self):
        self.parents = np.arange(2)
        # For each id, the number of the parameter axis that has the id, or −1 if no parameter axis
        # has the id. The axes of all parameters are numbered together.
        self.owners = np.full(2, -1)
        # For each id whose channel cannot be removed, the index of the reason in `pinned`. Other
        # ids have −1 or `NO_CHANNEL`.
        self.reasons = np.full(2, -1)
        # the equations that are being evaluated, outermost first
        self.equations: tuple[Equation, ...] = ()
        # For each free axis of a loop's initial state, the channel ids that the axis gets whenever
        # the loop is evaluated. The key consists of Python's `id()` of each equation around the
        # loop, the number of the state, and the axis. The equations are stored, too, because Python
        # could give the `id()` of a deleted equation to a new equation.
        self.states: dict[tuple[int, ...], tuple[tuple[Equation, ...], Vector]] = {}
        # how each reshape equation splits axes; the keys are Python's `id()` of the equations
        self.splits: dict[int, Split] = {}
        # True after the whole program has been read. Then no further channels are pinned.
        self.settled = False
        # for each id that is a root, whether its channel is removed; empty if no channel is removed
        self.removed = np.zeros(0, bool)
        self.pinned: list[Pinned] = []
        # ids along axes over which activations are summed, or along which a constant varies
        self.normed = fixed(0)
        # Sums over the kept channels omit the removed channels. Therefore the elements of these
        # arrays at removed channels must be zero, or equal to each other.
        self.zeroed: list[Requirement] = []
        self.singular: list[Requirement] = []  # arrays that must not become zero, such as divisors

    def new(self, count: int) -> Vector:
        """Make `count` new ids, each in a set of its own."""
        return self.of_axes([count], owned=False)[0]

    @contextmanager
    def inside(self, eqn: Equation) -> Iterator[None]:
        """Make `eqn` the innermost of the equations that are being evaluated."""
        outer = self.equations
        if not outer or outer[-1] is not eqn:
            self.equations = (*outer, eqn)
        yield
        self.equations = outer

    def of_axes(self, counts: Sequence[int], *, owned: bool = True) -> list[Vector]:
        """New ids for axes of the sizes `counts`, each id in a set of its own.

        If `owned` is true, the axes are axes of parameters.
        """
        start, count = self.parents.size, sum(counts)
        ids = np.arange(start, start + count)
        owners = np.repeat(np.arange(len(counts)), counts) if owned else np.full(count, -1)
        self.parents = np.concatenate([self.parents, ids])
        self.owners = np.concatenate([self.owners, owners])
        self.reasons = np.concatenate([self.reasons, np.full(count, -1)])
        return np.split(ids, np.cumsum(counts)[:-1]) if counts else []

    def find(self, ids: Vector) -> Vector:
        """For each id of `ids`, the smallest id in its set.

        The result is `FIXED` for an id whose channel cannot be removed.
        """
        roots = self.parents[ids]
        while not np.array_equal(above := self.parents[roots], roots):
            self.parents[roots] = self.parents[above]
            roots = above
        self.parents[ids] = roots
        return roots

    def roots(self) -> Vector:
        """For every id, the smallest id in its set, as returned by `find`."""
        while not np.array_equal(above := self.parents[self.parents], self.parents):
            self.parents = above
        return self.parents

    def removable(self, ids: Vector) -> bool:
        """Whether the channel of at least one of `ids` may still be removed."""
        return bool((self.find(ids) > FIXED).any())

    def union(self, a: Vector, b: Vector) -> Vector:
        """Unite the ids `a` with the ids `b`, index by index.

        The result is `a`, or `b` where `a` is free.
        """
        first, second = self.find(a), self.find(b)
        differ = (first != second) & (first != FREE) & (second != FREE)
        if differ.any():
            self._note_pinned(*(ids[differ] for ids in (a, b, first, second)))
        low, high = first[differ], second[differ]
        # If an id is the larger id of several pairs, one pass of the loop unites the id only with
        # the smallest of the other ids. Later passes unite the other pairs.
        while low.size:
            low, high = np.minimum(low, high), np.maximum(low, high)
            descending = np.argsort(-low)
            self.parents[high[descending]] = low[descending]
            low, high = self.find(low), self.find(high)
            low, high = low[low != high], high[low != high]
        return np.where(first == FREE, b, a)

    def _note_pinned(self, a: Vector, b: Vector, first: Vector, second: Vector) -> None:
        """Record why channels can no longer be removed after `a` and `b` are united.

        `first` and `second` are the roots of `a` and `b`.
        """
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
        """Forbid the removal of the channels with the given `ids`, and record the reason.

        The reason is `name` or `equations`. By default, the reason is the equations that are being
        evaluated.
        """
        roots = self.find(ids)
        if self.settled:
            self._check_kept(roots, np.full(ids.size, FIXED))
        else:
            self.report(ids, equations, name=name)
            self.parents[roots[roots > FIXED]] = FIXED
        return np.where(roots == FREE, FIXED, ids)

    def new_pinned(self, count: int, name: tuple[str, str] | None = None) -> Vector:
        """New ids for `count` indices; a channel that is united with a new id cannot be removed.

        The recorded reason is the input or output `name`, or the equation that is being evaluated.
        """
        return fixed(count) if self.settled else np.repeat(self.pin(self.new(1), name=name), count)

    def pin_like(self, axes: Sequence[Vector], count: int) -> Vector:
        """`count` copies of one id whose channel cannot be removed.

        The copied id is the first id in `axes` whose reason is recorded, or else `FIXED`.
        """
        ids = np.concatenate([fixed(1), *axes])
        return np.repeat(ids[np.argmax(self.reasons[ids] >= 0)], count)

    def fix(self, ids: Vector) -> None:
        """Add `ids` to `FIXED`, because they count window positions or scan steps, not channels."""
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
        """Record that `equations` or `name` forbid the removal of `ids`, or make `ids` `normed`.

        `name` is the kind and path of an input or output of the program.
        """
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
        """A mask over all ids that is true at the given `ids`."""
        mask = np.zeros(self.parents.size, bool)
        mask[ids] = True
        return mask

    def _check_kept(self, first: Vector, second: Vector) -> None:
        """Raise if the equation that is being evaluated unites a removed and a kept channel."""
        if not self.removed.size:
            return
        # Ids that are newer than the array `removed` are not checked. If a newer id and an older
        # id are united, the newer id joins the set of the older id.
        old = np.maximum(first, second) < self.removed.size
        if (self.removed[first[old]] != self.removed[second[old]]).any():
            name = self.equations[-1].primitive.name if self.equations else "apply"
            raise ValueError(
                f"groups must hold only channels that can be removed from this program; its {name} "
                f"needs some of them{at(line_of(self.equations))}"
            )

    def union_all(self, values: Values, shape: Sequence[int]) -> tuple[Vector, ...]:
        """The channel ids of an array of the given `shape`, computed elementwise from `values`.

        Operands that are scalars, or whose axis has size 1, are broadcast.
        """

        def united(k: int, n: int) -> Vector:
            axes = (v.axes[k] for v in values if v.axes)
            return reduce(self.union, (axis for axis in axes if axis.size == n), free(n))

        return tuple(united(k, n) for k, n in enumerate(shape))

    def zero_at(self, value: ChannelIds, axes: Sequence[Vector]) -> Zero:
        """The parameters that must be zero to make `value` zero at channels along `axes`.

        `axes` are the axes of the array to whose shape `value` is broadcast. The function returns
        None if `value` may be nonzero at channels along `axes`, for example because `value` is
        broadcast along a removable axis. If no channel is removable, the function returns the empty
        set, because no parameter needs to be zero.
        """
        if value.number == 0 or not any(map(self.removable, axes)):
            return frozenset()
        if value.zero is None or len(value.axes) != len(axes):
            return None
        pairs = zip(axes, value.axes, strict=True)
        stretched = any(v.size < a.size or is_free(v) for a, v in pairs if self.removable(a))
        return None if stretched else value.zero

    def all_zero(self, values: Values, axes: Sequence[Vector]) -> Zero:
        """The parameters that make each array of `values` zero at channels along `axes`."""
        return together([self.zero_at(value, axes) for value in values])

    def any_zero(self, values: Values, axes: Sequence[Vector]) -> Zero:
        """The parameters that make the product of `values` zero at channels along `axes`."""
        zeros = (self.zero_at(value, axes) for value in values)
        return reduce(_either, (zero for zero in zeros if zero is not None), None)

    def uniform(self, values: Values) -> Zero:
        """The parameters that, if zero, make each array uniform along removable channels."""

        def one(value: ChannelIds) -> Zero:
            varies = value.zero is None and any(map(self.removable, value.axes))
            return value.uniform if varies else value.zero or frozenset()

        return together(map(one, values))

    def requirement_of(
        self, value: ChannelIds, ids: Vector, *, weight: bool = False
    ) -> Requirement:
        """The requirement that `value` has zeros, or else equal elements, at the channels `ids`.

        Equal elements are required if no parameters make `value` zero. If `weight` is true, `value`
        is a weight, and a product sums over its axis with these ids. A weight may be computed from
        several parameters, for example as their sum. The sum unites the ids of the parameters. At
        the first product with the weight, no ids of activations are united with the ids of the
        weight yet. Therefore, at this product, all axes with these ids are axes of parameters, and
        `incoming` lists all of them.
        """
        parameters = value.uniform if value.zero is None else value.zero
        if not weight:
            return Requirement(ids, parameters, value.given, self.equations)
        incoming = frozenset(distinct(self.owners[ids]))
        if sum(map(len, parameters or ())) > 1:
            read = {k for earlier in self.zeroed for k in earlier.incoming or ()}
            members = self.mask_of(self.find(ids[self.find(ids) > FIXED]))[self.roots()]
            every = frozenset(distinct(self.owners[members]))
            incoming = incoming if incoming <= read else incoming | every
        return Requirement(ids, parameters, True, self.equations, incoming)

    def merge(self, axes: Sequence[Vector]) -> Vector:
        """The channel ids of the axis into which `axes` are flattened.

        Only the channels along one of `axes` can then be removed.
        """
        size = int(np.prod([axis.size for axis in axes]))
        removable = [k for k, axis in enumerate(axes) if axis.size > 1 and self.removable(axis)]
        if not removable:
            return free(size) if all(map(is_free, axes)) else self.pin_like(axes, size)
        left = removable[-2:][0]
        for k in removable:
            if k != left:
                self.pin(axes[k])
        inner = int(np.prod([axis.size for axis in axes[left + 1 :]]))
        return np.resize(np.repeat(axes[left], inner), size)

    def split_axis(self, axis: Vector, sizes: Sequence[int], first: int) -> list[Vector]:
        """The channel ids of the axes into which `axis` is split by a reshape to `sizes`.

        Ids are united until they vary along only one of the new axes. The attribute `splits`
        determines along which new axis the ids vary. By default, the ids vary along the last new
        axis but one. For example, if an axis is split into heads and the width of a head, the ids
        vary along the heads. `first` is the number of the first new axis in the result of the
        reshape.
        """
        if is_free(axis):
            return [free(n) for n in sizes]
        rest = [self.pin_like([axis], n) if n > 1 else free(n) for n in sizes]
        if not self.removable(axis):
            return rest
        grid = self.find(axis).reshape(sizes)
        split = self.splits.get(id(self.equations[-1]), Split())
        varying = [k for k in range(len(sizes)) if (grid != grid.take([0], k)).any()]
        varying = [k for k in varying if first + k not in split.pinned] or varying
        if not varying or split.longest:
            varying = [max(varying or range(len(sizes)), key=lambda k: sizes[k])]
        k = varying[-2:][0]
        line, *others = np.moveaxis(grid, k, 0).reshape(sizes[k], -1).T
        for other in others:
            if not np.array_equal(line, other):
                self.union(line, other)
        return [*rest[:k], self.find(line), *rest[k + 1 :]]

    def give_constants_ids(self, values: Values) -> list[ChannelIds]:
        """Give the constants among `values` the ids of the channels along which constants vary.

        A constant in the program has the width of the model before pruning. If a constant varies
        along channels, `resized` cuts the constant to the remaining channels.
        """
        found = list(values)
        for i, constant in enumerate(values):
            axes = list(constant.axes) if constant.constant else []
            for k, axis in enumerate(axes):
                beside = (v.axes[k] for v in values if v.axes)
                channels = [ids for ids in beside if ids.size == axis.size and self.removable(ids)]
                if channels and not is_free(axis):
                    self.report(channels[0], constant.drawn, normed=True)
                    axes[k] = channels[0]
            if constant.constant:
                found[i] = constant._replace(axes=tuple(axes), zero=None, uniform=None)
        return found

    def pin_others(self, value: ChannelIds, untouched: Callable[[int], bool]) -> list[Vector]:
        """Forbid removals along all axes of `value` but the `untouched` axes; return all axes."""
        return [axis if untouched(k) else self.pin(axis) for k, axis in enumerate(value.axes)]


def distinct(numbers: Vector) -> Vector:
    """The distinct values in a vector of small integers, without the value −1."""
    return np.flatnonzero(np.bincount(numbers + 1)[1:])


def together(zeros: Iterable[Zero]) -> Zero:
    """The parameters that must be zero to make all arrays zero.

    The result is None if at least one array cannot be made zero.
    """
    sets = list(zeros)
    return None if None in sets else _shortest(frozenset().union(*filter(None, sets)))


def _either(first: Zero, second: frozenset[tuple[int, ...]]) -> Zero:
    """The parameters that must be zero to make at least one of two arrays zero."""
    if first is None:
        return second
    if len(first) * len(second) > MAX_TUPLES:
        return first
    return _shortest(frozenset(tuple(dict.fromkeys(a + b)) for a in first for b in second))


def _shortest(zero: frozenset[tuple[int, ...]]) -> frozenset[tuple[int, ...]]:
    """The tuples of `zero`, without each tuple that contains all parameters of another tuple."""
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
