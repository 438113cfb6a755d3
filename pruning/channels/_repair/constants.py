"""Adds the constant outputs of removed channels to the next biases.

If all weights of a filter are zero, the output of the filter's channel is a constant, such as
relu(β) for a batch norm with bias β. If the channel is removed, the constant is missing from the
sums of the next layer.
"""

from collections.abc import Collection, Sequence
from itertools import compress
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm.internal import check_on_host
from pruning.channels._coupling.groups import ChannelGroup, describe
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Tree,
    evaluate_equation,
    is_floating,
)
from pruning.channels._removal.removal import (
    Keep,
    KeepMasks,
    check_keep,
    keep_masks,
    mask_channels,
    producers,
    removed_elements,
)
from pruning.channels._repair.parameters import Addend, Fact, read_network


class Value(NamedTuple):
    """The values of an array in two networks, one with zero filters and one with masked channels.

    Attributes:
      zeroed: The array in a network in which only the filters of removed channels are zero.
      masked: The array in a network in which all positions of removed channels are zero.
    """

    zeroed: Leaf
    masked: Leaf


def fold_constants(
    apply: Apply, params: Tree, groups: Sequence[ChannelGroup], keep: Keep, *inputs: Tree
) -> Tree:
    """Add the constant outputs of removed channels to the biases of the next layers.

    The filters of a removed channel are assumed to be zero. If the program subtracts a running mean
    from the outputs of removed filters, the outputs are assumed to equal the running mean.
    Therefore the output of a removed channel is a constant, such as relu(β) if β is the last bias
    before the nonlinearity. The constant contributes to the sums of the next layer. The
    contribution is added to the first parameter that the program adds to the sums (a bias), or
    subtracted from the first parameter that the program subtracts (a running mean).

    The contribution is dropped in six cases:

    - The sums are complex numbers.
    - No parameter is added to the sums before the next nonlinearity.
    - The sum is inside a loop, a branch or a `shard_map`.
    - The model divides by an array of the group, or takes its logarithm or square root.
    - The group is `normed`: after a norm over the channels, the contribution depends on the inputs.
    - The contribution at `inputs` differs from the contribution at other inputs.

    If one element of a bias is added to several sums with different contributions, the mean
    contribution is added. For example, if a convolution pads with zeros, the contribution is
    smaller along the edges of an image. If several sums share a bias, only the contribution to the
    first sum is added. If all contributions to a sum are constant and added in full, the folding is
    exact. If a mean contribution was added, the contributions to later sums are computed as if the
    mean were exact. If a contribution depends on the inputs, zero is used instead of the
    contribution.

    Args:
      apply: A function that JAX can trace, as for `coupled_channels`.
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      keep: For each group, the mask of kept channels, as for `remove_channels`. `keep` cannot be
        traced. Call `remove_channels` next.
      inputs: The other arguments of `apply`, with any values, because the constants do not depend
        on the inputs.

    Returns:
      A tree of the same shapes as `params`. Only parameters that the program adds or subtracts have
      changed.

    Raises:
      ValueError: `mask_channels` would raise an error, or `apply` cannot be traced at the given
        arguments.
      TypeError: `mask_channels` would raise a TypeError.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     h = jax.nn.relu(x @ params["a"] + params["b"])
      ...     return h @ params["c"] + params["d"]
      >>> params = {"a": np.ones((2, 2)), "b": np.array([3.0, 1.0])}
      >>> params |= {"c": np.full((2, 1), 2.0), "d": np.zeros(1)}
      >>> groups = coupled_channels(mlp, params, np.ones(2))
      >>> print(fold_constants(mlp, params, groups, [np.array([False, True])], np.ones(2))["d"])
      [6.]
    """
    check_on_host("fold_constants", keep, instead="for a traced keep, use mask_channels alone")
    check_keep(groups, keep, may_be_empty=True)
    regular = [not g.normed and all(p.masked for p in g.positions) for g in groups]
    groups = list(compress(groups, regular))
    keep = list(compress(keep, regular))
    masks = keep_masks(groups, list(map(np.asarray, keep)))
    inputs = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, inputs
    )
    network, paths, unchanged = read_network(apply, params, inputs), describe(params).paths, set()
    if not groups:
        return params
    facts = network.facts
    biases = {paths[fact.shift.leaf] for fact in facts if fact.shift is not None}
    biases -= {paths[fact.kernel.addend.leaf] for fact in facts if fact.kernel is not None}
    kernels = []
    for group in groups:  # `producers` also includes biases with two axes, such as in attention
        filters = tuple(p for p in producers(group) if p.path not in biases)
        kernels.append(group._replace(positions=filters or producers(group)))
    trees = (mask_channels(params, some, keep) for some in (kernels, groups))
    values = list(map(Value, *map(jax.tree.leaves, trees)))
    leaves, structure = jax.tree.flatten(params)
    given = jax.tree.leaves(inputs)
    pairs = [
        (Value(x, x), Value(y, y)) for x, y in zip(given, map(_other_values, given), strict=True)
    ]
    while True:
        folding = Folding(paths, leaves, masks, unchanged)
        # `jit` is not used, because each pass of the loop would compile a new program.
        arguments = [*((value, value) for value in values), *pairs]
        network.interpret(arguments, lambda x: (Value(x, x),) * 2, folding.step)
        if not folding.altered:
            break
        unchanged |= folding.altered
    for i, change in folding.changes.items():
        # The method `add` keeps the weak type of an array, but the operator `+` does not.
        leaves[i] = jnp.asarray(leaves[i]).at[...].add(change)
    return jax.tree.unflatten(structure, leaves)


def _other_values(x: Leaf) -> Leaf:
    """An array with the dtype and shape of the input `x`, and with other values and means.

    Integers stay in the range of `x`, because they may be indices. If all integers are equal, they
    increase by 1. Python numbers and random keys do not change.
    """
    if not isinstance(x, np.ndarray | jax.Array) or not x.size:
        return x
    if x.dtype == bool:
        return jnp.broadcast_to(~jnp.any(x), x.shape)
    if jnp.issubdtype(x.dtype, jnp.integer):
        halved = x.min() + (x - x.min()) // 2
        return jnp.where((halved == x).all(), x + 1, halved)
    return (1 - 2 * x).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x


Pair = tuple[Value, ...]
"""The values of an array for the inputs of the user, and for other inputs."""


class Folding:
    """Evaluates two networks at once, and changes biases in one to make the sums of both equal.

    The two networks are evaluated at the user's inputs and at other inputs. A bias change that
    differs between the two inputs is dropped, because the change is no constant. If a sum is equal
    in both networks before any change, the parameter of this sum must not change. The parameters in
    `altered` were changed for an earlier sum, although they must not change, so they must be in
    `unchanged` at the next evaluation.
    """

    def __init__(
        self,
        paths: Sequence[str],
        leaves: Sequence[Leaf],
        masks: KeepMasks,
        unchanged: Collection[int],
    ):
        self.paths, self.leaves, self.masks = paths, leaves, masks
        self.changes = {i: jnp.zeros_like(leaves[i]) for i in unchanged}
        self.altered: set[int] = set()
        self.eps = 0.0  # the largest machine epsilon of all dtypes so far

    def step(self, fact: Fact, eqn: Equation, pairs: Sequence[Pair]) -> list[Pair]:
        values = self.evaluate(fact, eqn, [pair[0] for pair in pairs])
        others = values
        if any(value is not other for value, other in pairs):
            others = self.evaluate(fact, eqn, [pair[1] for pair in pairs])
        if (addend := fact.shift) is not None:
            return [self.absorb(rule_of(eqn).signs[1:] == (-1,), addend, (values[0], others[0]))]
        return list(zip(values, others, strict=True))

    def evaluate(self, fact: Fact, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        zeroed = evaluate_equation(eqn, [v.zeroed for v in values])
        dtypes = [x.dtype for x in zeroed if is_floating(x)]
        self.eps = max(self.eps, *(float(jnp.finfo(dtype).eps) for dtype in dtypes), 0.0)
        same = all(v.zeroed is v.masked for v in values)
        masked = zeroed if same else evaluate_equation(eqn, [v.masked for v in values])
        if fact.given and not same:
            # If the program normalizes a weight, zeros at removed channels also change the weight
            # at kept channels. This change is not a constant of a removed channel, so it is undone.
            masked = [jnp.where(m == 0, m, z) for m, z in zip(masked, zeroed, strict=True)]
        return list(map(Value, zeroed, masked))

    def absorb(self, subtracted: bool, addend: Addend, pair: Pair) -> Pair:
        """The sum of activations and a parameter, after the parameter has been changed.

        The parameter changes by the mean difference `zeroed` − `masked` between the sums in the two
        networks. If the mean difference differs between the two inputs by more than rounding, the
        parameter stays as it is. If the program subtracts a running mean, `zeroed` is first set to
        zero at removed channels.
        """
        leaf, array = addend.leaf, jnp.asarray(self.leaves[addend.leaf])
        removed = removed_elements(array, self.paths[leaf], self.masks)
        removed = jnp.asarray(removed, array.dtype)
        remains = addend.spread(removed) == 0
        if subtracted:
            pair = tuple(v._replace(zeroed=jnp.where(remains, v.zeroed, 0)) for v in pair)
        if pair[0].zeroed is pair[0].masked:
            if self.changes.setdefault(leaf, jnp.zeros_like(array)).any():
                self.altered.add(leaf)
            return pair
        if leaf in self.changes:
            change = addend.spread(self.changes[leaf])
            return tuple(v._replace(masked=v.masked + change) for v in pair)
        here, there = [addend.mean(v.zeroed - v.masked, array) * (1 - removed) for v in pair]
        # Elements of `there` that are not finite are not compared with `here`.
        distances = jnp.where(jnp.isfinite(there), jnp.abs(here - there), 0)
        largest = max(float(jnp.abs(v.zeroed).max(initial=0)) for v in pair)
        differ = float(distances.max(initial=0)) > self.eps**0.5 * largest
        self.changes[leaf] = jnp.zeros_like(array) if differ else here
        # At kept channels, the sums `zeroed` and `masked` can still differ, because the output of a
        # removed channel was dropped, or only its mean was added. This difference is set to zero.
        # Otherwise the difference would depend on the inputs after a nonlinearity, and no later
        # constant would be folded.
        # If the sums of both networks were one array object, they would count as equal. Therefore
        # `jnp.where` makes a new array.
        return tuple(Value(z, jnp.where(remains, z, m)) for z, m in pair)
