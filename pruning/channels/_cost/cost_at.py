"""Computes the cost of a network at any widths of its channel groups, from one traced program.

The width of a group is its number of channels. The size of each axis of each array is a linear
function of the groups' widths. Therefore the cost of a matrix product, of a convolution or of a
parameter is a product of linear functions of the widths.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxnorm.internal import check_on_host
from pruning._arguments import check_values
from pruning.channels._cost.cost import Cost, cost
from pruning.channels._coupling.channel_ids import ChannelIds, UnionFind, Values, Vector, is_free
from pruning.channels._coupling.control_flow import equation_ids, ids_of_constant
from pruning.channels._coupling.coupling import TracedChannels, channels_of
from pruning.channels._coupling.groups import ChannelGroup, arrays_of, parameters_of
from pruning.channels._coupling.rules import summed_of_product
from pruning.channels._program.calls import Apply, Equation, Program, Tree, subprograms
from pruning.channels._program.interpret import interpret
from pruning.channels._removal.removal import name, remove_channels
from pruning.channels._removal.resizing import resized

Widths = Sequence[int]
"""The number of remaining channels of each group."""
Product = tuple[int, Sequence[Vector]]
"""The factor and the channel ids of each axis, which stand for the factor times the axes' sizes."""


def cost_at(
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    *inputs: Tree,
    batch_sizes: Sequence[int] = (),
) -> Callable[[Widths], Cost]:
    """A function that returns the cost of the network at given numbers of channels per group.

    The function returns the same cost as `cost` for the smaller network, without tracing the
    smaller network. If a product reads only a part of a group's channels, the count assumes that
    the part loses the same fraction of its channels as the whole group. If a `cond` has several
    branches, the function counts the branch that is most expensive at the original widths. If a
    norm reads removed channels, `resized` adds operations for the removed channels. `cost_at` does
    not count these operations. If `batch_sizes` are given, the returned function compiles the
    smaller network by `resized`, and measures the time of the smaller network as `cost` does.

    Args:
      apply: A function that JAX can trace, as for `coupled_channels`.
      params: The tree from which the groups were read. Without `batch_sizes`, a
        `jax.ShapeDtypeStruct` can be passed instead of any array.
      groups: All or some groups of `coupled_channels`.
      inputs: The other arguments of `apply`.
      batch_sizes: The batch sizes to measure, as for `cost`.

    Raises:
      ValueError: `apply` cannot be traced, or the groups were not read from `params`. The returned
        function raises a ValueError if a width is less than 1 or more than the size of its group.

    Example:
      >>> import jax
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params, x = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}, np.ones((1, 2))
      >>> at = cost_at(mlp, params, coupled_channels(mlp, params, x), x)
      >>> print(at([8]).macs, at([5]).macs, at([5]).parameters)
      40 25 25
    """
    if batch_sizes:
        check_on_host("a timing of cost_at", params, inputs, instead="leave batch_sizes empty")
        check_values("a timing of cost_at", params, inputs)
    parameters_of(params, groups)
    channels = channels_of(apply, params, inputs)
    leaves = arrays_of(params)
    of_leaves = [(1, value.axes) for value in channels.arguments[: len(leaves)]]
    arrays = Products(channels, groups, of_leaves)
    of_program = _macs(channels.sets, channels.program, channels.arguments)
    products = Products(channels, groups, of_program)
    itemsizes = np.array([leaf.dtype.itemsize for leaf in leaves], np.int64)

    def at(widths: Widths) -> Cost:
        check_widths(groups, widths)
        sizes, timings = arrays(widths), {}
        if batch_sizes:
            keep = [np.arange(g.size) < n for g, n in zip(groups, widths, strict=True)]
            small = remove_channels(params, groups, keep)
            run = resized(apply, groups, keep)
            timings = cost(run, small, *inputs, batch_sizes=batch_sizes).timings
        macs = round(products(widths).sum())
        return Cost(round(sizes.sum()), macs, round(float(sizes @ itemsizes)), timings)

    return at


def check_widths(groups: Sequence[ChannelGroup], widths: Widths) -> None:
    """Raise unless `widths` has one width for each group, from 1 to the size of the group."""
    if len(widths) != len(groups):
        raise ValueError(
            f"widths must hold {len(groups)} numbers, one per group; got {len(widths)}: if prune "
            "excluded layers, pass excluding(groups, names) as groups"
        )
    for group, width in zip(groups, widths, strict=True):
        if not 1 <= width <= group.size:
            raise ValueError(f"widths must lie in 1..{group.size} for {name(group)}; got {width}")


class Products:
    """Products of the sizes of axes, as functions of the widths of channel groups."""

    def __init__(
        self, channels: TracedChannels, groups: Sequence[ChannelGroup], products: Sequence[Product]
    ):
        sets = channels.sets
        owner = np.full(sets.parents.size, len(groups))
        for i, group in enumerate(groups):
            for p in group.positions:
                owner[sets.find(channels.ids_of(p.path, p.axis)[p.indices])] = i
        sizes = np.array([*(group.size for group in groups), 1])
        count, longest = len(products), max((len(axes) for _, axes in products), default=0)
        self.factors = np.array([factor for factor, _ in products], np.int64)
        self.slopes = np.zeros((count, longest, len(groups) + 1))
        # The last slope of an axis is the number of indices that belong to no group. If a product
        # has fewer axes than another product, the missing axes have size 1.
        self.slopes[:, :, -1] = 1
        for i, (_, axes) in enumerate(products):
            for k, axis in enumerate(axes):
                roots = sets.find(np.where(axis < owner.size, axis, sets.find(axis)))
                counts = np.bincount(owner[roots], minlength=sizes.size)
                self.slopes[i, k] = counts / sizes

    def __call__(self, widths: Widths) -> np.ndarray:
        return self.factors * (self.slopes @ np.array([*widths, 1])).prod(1)


def _macs(sets: UnionFind, program: Program, arguments: Values, factor: int = 1) -> list[Product]:
    """The multiply-accumulates of matrix products and convolutions, as products of axis sizes."""
    products: list[Product] = []

    def step(eqn: Equation, values: Values) -> list[ChannelIds]:
        arguments, results = equation_ids(sets, eqn, values)
        if (summed := summed_of_product(eqn)) is not None:
            pairs = ([values[k].axes[axis] for k, axis in pair] for pair in summed)
            axes = (next((ids for ids in pair if not is_free(ids)), pair[0]) for pair in pairs)
            products.append((factor, (*results[0].axes, *axes)))
        times = factor * eqn.params["length"] if eqn.primitive.name == "scan" else factor
        with sets.inside(eqn):
            programs = zip(subprograms(eqn), arguments, strict=True)
            inner = [_macs(sets, program, ids, times) for program, ids in programs]
        if eqn.primitive.name == "cond":
            largest = [sum(n * math.prod(a.size for a in axes) for n, axes in p) for p in inner]
            inner = [inner[np.argmax(largest)]]
        products.extend(product for of_program in inner for product in of_program)
        return results

    interpret(program, arguments, ids_of_constant, step, enter_calls=False)
    return products
