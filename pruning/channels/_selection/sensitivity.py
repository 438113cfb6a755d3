"""Measures the network after only one group has lost channels, for each group."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm.internal import check_function, check_numeric, check_on_host
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._program.calls import Apply, Leaf, Tree
from pruning.channels._program.interpret import check_apply
from pruning.channels._removal.removal import mask_channels
from pruning.channels._selection.choice import (
    Scores,
    channel_scores,
    check_scores,
    select_layerwise,
)

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def sensitivity(
    params: Tree,
    groups: Sequence[ChannelGroup],
    *,
    measure: Callable[[Tree], Leaf],
    ratios: Sequence[int | float] = RATIOS,
    score: Callable[[Tree, Sequence[ChannelGroup]], Scores] = channel_scores,
) -> Float[np.ndarray, "groups ratios"]:
    """Measure the network after one group loses some of its channels, for each group and ratio.

    The method is from "Pruning filters for efficient ConvNets", Li et al. (2017). The function
    measures groups instead of the layers of the paper. Channels are masked, that is, set to zero.
    The masked network has the same outputs as the smaller network. All masked trees have the same
    shapes, so a compiled `measure` compiles once. `sensitivity` runs on the host.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      measure: A function that maps a tree like `params` to a number, such as the accuracy on some
        images, or `output_error(apply, params, images)`.
      ratios: Fractions of the channels to mask, in (0, 1).
      score: A function that scores the channels of each group, as for `prune`. The channels with
        the lowest scores are masked.

    Raises:
      TypeError: `measure` or `score` is not a function, or `ratios` is a number.
      ValueError: A ratio lies outside (0, 1).

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params, x = {"a": np.array([[3.0, 1.0]]), "b": np.ones((2, 1))}, np.ones((1, 1))
      >>> groups = coupled_channels(mlp, params, x)
      >>> measure = output_error(mlp, params, x)
      >>> print(sensitivity(params, groups, measure=measure, ratios=[0.1, 0.5]))
      [[0.   0.25]]
    """
    check_on_host("sensitivity", params, instead="call sensitivity before compiling")
    check_function(measure, "measure", "output_error(apply, params, images)")
    check_function(score, "score", "channel_scores")
    if isinstance(ratios, int | float | np.number):
        raise TypeError(f"ratios must be a list, such as [0.5]; got {ratios}")
    scores = score(params, groups)
    check_scores(scores, groups)

    def measured(group: ChannelGroup, own: Array, ratio: int | float) -> float:
        value = measure(mask_channels(params, [group], select_layerwise([own], ratio=ratio)))
        check_numeric(value, "the result of measure")
        return np.asarray(value).item()

    pairs = zip(groups, scores, strict=True)
    values = [[measured(group, own, ratio) for ratio in ratios] for group, own in pairs]
    return np.array(values, float).reshape(len(groups), len(ratios))


def output_error(apply: Apply, params: Tree, *inputs: Tree) -> Callable[[Tree], Float[Array, ""]]:
    """Make a function from a tree to the relative change of the outputs of `apply`.

    The change is ‖apply(tree) − apply(params)‖ / ‖apply(params)‖ at `inputs`.

    Raises:
      TypeError: `apply` is not a function.

    Example:
      >>> error = output_error(lambda w, x: w * x, 2.0, np.ones(3))
      >>> print(error(3.0))
      0.5
    """
    check_apply(apply)
    whole = jax.tree.leaves(apply(params, *inputs))
    size = sum(jnp.sum(jnp.square(jnp.abs(y))) for y in whole)

    def error(tree: Tree) -> Float[Array, ""]:
        pairs = zip(jax.tree.leaves(apply(tree, *inputs)), whole, strict=True)
        change = sum(jnp.sum(jnp.square(jnp.abs(a - b))) for a, b in pairs)
        return jnp.sqrt(change / size)

    return error
