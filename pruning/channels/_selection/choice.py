"""Scores the channels of coupled groups, and chooses the channels to remove for a given ratio.

The score of a channel is computed from the filters that make the channel. The channels with the
lowest scores are removed first. Channels with equal scores are ordered by `pruning.order`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxnorm.internal import (
    auto_sharded,
    check_batches,
    check_flags,
    check_function,
    check_on_host,
    check_whole,
    flat_rows,
)
from pruning._arguments import at_least, check_names, check_values, real
from pruning.channels._coupling.groups import ChannelGroup, parameters_of
from pruning.channels._program.calls import Tree
from pruning.channels._removal.removal import producers
from pruning.criteria._criteria import l2_norm
from pruning.ranking._ranking import order, round_down

Scores = Sequence[Float[Array, " _"]]
Masks = list[Bool[np.ndarray, " _"]]
Select = Callable[..., Masks]


def channel_scores(
    params: Tree,
    groups: Sequence[ChannelGroup],
    *,
    criterion: Callable[[Float[Array, "filters dims"]], Float[Array, " filters"]] = l2_norm,
    reduce: Callable[..., Array] = jnp.mean,
) -> list[Float[Array, " _"]]:
    """Score the channels of each group by the filters of all layers that make these channels.

    The criterion scores all filters of a layer together, including the filters of channels that
    cannot be removed. Several filters make one channel if, for example, feature maps are added or a
    convolution is grouped. `reduce` combines the scores of all filters of a channel. A complex
    filter is scored as the vector of its real and imaginary parts.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      criterion: A function of `CRITERIA`, or another function that scores filters, given as the
        rows of a matrix.
      reduce: A function that reduces an array along `axis`, such as `jnp.sum`, `jnp.mean` or
        `jnp.max`.

    Raises:
      TypeError: A kernel has an integer dtype, or `params` has shapes instead of arrays.
      ValueError: Groups were read from a tree other than `params`.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[3.0, 1.0], [4.0, 1.0]]), "b": np.ones((2, 1))}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 2)))
      >>> print(channel_scores(params, groups, criterion=lambda v: abs(v).sum(1))[0])
      [7. 2.]
    """
    check_function(criterion, "criterion", "pruning.CRITERIA['l1']")
    check_values("channel_scores", params)
    leaves = dict(zip(parameters_of(params, groups).paths, jax.tree.leaves(params), strict=True))

    @cache
    def scores(path: str, axis: int) -> Array:
        dtype = leaves[path].dtype
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"params must hold floating-point kernels; {path} has dtype {dtype}; for a "
                "quantized network, give prune a `score` that reads the kernels times their scales"
            )
        rows = flat_rows(jnp.moveaxis(jnp.asarray(leaves[path]), axis, 0))
        if jnp.iscomplexobj(rows):
            rows = jnp.concatenate([rows.real, rows.imag], 1)
        found = auto_sharded(criterion)(rows)
        if np.shape(found) != (len(rows),):
            raise ValueError(
                f"criterion must return one number for each of the {len(rows)} filters of {path}; "
                f"got shape {np.shape(found)}"
            )
        return jnp.asarray(found)

    def of_group(group: ChannelGroup) -> Array:
        of_filters = [jnp.take(scores(p.path, p.axis), p.indices, 0) for p in producers(group)]
        found = reduce(jnp.concatenate(of_filters, 1), axis=1)
        if np.shape(found) != (group.size,):
            raise ValueError(
                f"reduce must return one number for each of {group.size} channels; got shape "
                f"{np.shape(found)}"
            )
        return found

    return list(map(of_group, groups))


def mean_scores(
    params: Tree,
    groups: Sequence[ChannelGroup],
    *,
    score: Callable[[Tree, Sequence[ChannelGroup], Tree], Scores],
    batches: Iterable[Tree],
) -> list[Float[Array, " _"]]:
    """Average `score(params, groups, batch)` over several batches, to reduce the noise.

    To use `mean_scores` with `prune`, pass `score=partial(mean_scores, score=of_batch,
    batches=batches)`. Each pruning step reads the batches again, so pass a list.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      score: A function that scores the channels of each group on one batch.
      batches: One batch or more.

    Raises:
      TypeError: `score` is not a function.
      ValueError: `batches` is empty.

    Example:
      >>> def of_batch(params, groups, batch):
      ...     return [batch * jnp.ones(2)]
      >>> print(mean_scores({}, [], score=of_batch, batches=[1.0, 2.0])[0])
      [1.5 1.5]
    """
    check_function(score, "score", "lambda params, groups, batch: ...")
    check_batches(batches)
    sums: list[Array] | None = None
    count = 0
    for batch in batches:
        scores, count = score(params, groups, batch), count + 1
        if not hasattr(scores, "__len__"):
            raise TypeError(f"score must return a list of vectors; got {type(scores).__name__}")
        found = list(map(jnp.asarray, scores))
        sums = found if sums is None else list(map(jnp.add, sums, found))
    if sums is None:
        raise ValueError("batches must hold at least one batch; got none")
    return [own / count for own in sums]


def select_layerwise(
    scores: Scores, *, ratio: int | float, min_channels: int = 1, round_to: int | Sequence[int] = 1
) -> Masks:
    """Choose channels to keep: a group of n channels loses the ⌊ratio · n⌋ with the lowest scores.

    `select_layerwise` runs on the host, because the masks determine the shapes of the smaller
    arrays. Inside `jit`, use `pruning.ranking.lowest` instead.

    Args:
      scores: One vector of scores for each group; ∞ for channels that must be kept.
      ratio: The fraction of channels to remove, in (0, 1).
      min_channels: The smallest number of channels that a group keeps. A group with fewer channels
        than `min_channels` keeps all channels.
      round_to: The number of kept channels of a group is a multiple of `round_to`, or the group
        keeps all channels. Pass one number, or one number for each group. Multiples of 8, 64 or 128
        are fast on common hardware.

    Raises:
      ValueError: An option is out of range, a score is NaN, or `scores` does not hold one vector
        for each group.

    Example:
      >>> select_layerwise([jnp.array([3.0, 1.0, 2.0, 4.0])], ratio=0.5)[0].tolist()
      [True, False, False, True]
    """
    check_on_host("select_layerwise", scores, instead="use lowest, a mask of removed scores")
    check_score_vectors(scores)
    _check_ratio(ratio)
    counts = [len(vector) - round_down(ratio, len(vector)) for vector in scores]
    return _largest(scores, counts, min_channels, multiples(round_to, len(scores)))


def select_globally(
    scores: Scores,
    *,
    ratio: int | float,
    min_channels: int = 1,
    round_to: int | Sequence[int] = 1,
    normalize: bool = True,
) -> Masks:
    """Choose channels to keep: the n channels of all groups lose the ⌊ratio · n⌋ lowest-scored.

    `select_globally` runs on the host. Inside `jit`, use `pruning.ranking.lowest` on the scores of
    all groups together. By default, the scores of each group are first divided by the mean of their
    absolute values, because norms of filters grow with the number of weights. Without the division,
    small layers would lose most of their channels. Fewer than ⌊ratio · n⌋ channels are removed if
    `min_channels`, `round_to` or scores of ∞ require this.

    Args:
      scores: One vector of scores for each group; −∞ for channels that were removed earlier, and ∞
        for channels that must be kept.
      ratio: The fraction of channels to remove, in (0, 1).
      min_channels: The smallest number of channels that a group keeps, as in `select_layerwise`.
      round_to: The number of kept channels of each group is a multiple of `round_to`, as in
        `select_layerwise`.
      normalize: If false, scores are not divided by a mean. Set `normalize` to false for scores
        with the same unit in all layers, such as `taylor_scores` and `reconstruction_scores`.

    Raises:
      ValueError: An option is out of range, a score is NaN, or `scores` does not hold one vector
        for each group.

    Example:
      >>> scores = [jnp.array([1.0, 2.0]), jnp.array([3.0, 9.0])]
      >>> print([mask.tolist() for mask in select_globally(scores, ratio=0.5)])
      [[False, True], [False, True]]
      >>> print([m.tolist() for m in select_globally(scores, ratio=0.5, normalize=False)])
      [[False, True], [True, True]]
    """
    check_on_host("select_globally", scores, instead="use lowest on all scores together")
    check_score_vectors(scores)
    _check_ratio(ratio)
    check_flags(normalize=normalize)
    scores = normalized(scores) if normalize else scores
    together = jnp.concatenate(list(scores))
    keep = keep_largest(together, together.size - round_down(ratio, together.size))
    parts = np.split(keep, np.cumsum([len(vector) for vector in scores])[:-1])
    counts = [int(part.sum()) for part in parts]
    return _largest(scores, counts, min_channels, multiples(round_to, len(scores)))


def normalized(scores: Scores) -> list[Float[Array, " _"]]:
    """The scores of each group, divided by the mean of their absolute values.

    The mean includes only finite scores.
    """

    def relative(vector: Array) -> Array:
        finite = jnp.isfinite(vector)
        mean = jnp.mean(jnp.abs(vector), where=finite) if finite.any() else 0
        return vector / jnp.where(mean > 0, mean, 1)

    return [relative(jnp.asarray(vector)) for vector in scores]


def multiples(round_to: int | Sequence[int], count: int) -> list[int]:
    """For each of `count` groups, a number that must divide the width of the group.

    The argument `round_to` is one number for all groups, or one number for each group.
    """
    several = isinstance(round_to, Sequence | np.ndarray)
    numbers = list(round_to) if several else [round_to] * count
    if len(numbers) != count:
        raise ValueError(f"round_to must hold {count} numbers, one per group; got {len(numbers)}")
    for number in numbers:
        check_whole(round_to=number)
        at_least(1, round_to=number)
    return numbers


def multiples_by_name(
    groups: Sequence[ChannelGroup], round_to: int | Mapping[str, int]
) -> list[int]:
    """For each group, a number that must divide the width of the group.

    The argument `round_to` is one number for all groups, or a dictionary from names of layers to
    numbers. If several names match a group, the result is the least common multiple of their
    numbers. If no name matches a group, the result is 1.

    Raises:
      ValueError: A name matches no layer with filters.
    """
    if not isinstance(round_to, Mapping):
        return multiples(round_to, len(groups))
    names = match_names(groups, round_to, "round_to")
    return [math.lcm(*(round_to[name] for name in found)) for found in names]


def excluding(groups: Sequence[ChannelGroup], names: Sequence[str]) -> tuple[ChannelGroup, ...]:
    """The groups whose channels are not made by a layer with one of the excluded names.

    Args:
      groups: All or some groups of `coupled_channels`.
      names: Names of layers. The name of a layer is one or more consecutive whole names of a path,
        such as `"stem"` or `"blocks/0"`.

    Raises:
      ValueError: A name matches no layer with filters.
    """
    check_names(names, "names")
    made = match_names(groups, names, "names")
    return tuple(group for group, found in zip(groups, made, strict=True) if not found)


def match_names(
    groups: Sequence[ChannelGroup], names: Iterable[str], argument: str
) -> list[set[str]]:
    """For each group, the given names that match a layer that makes the group's channels.

    A layer that keeps all filters anyway, such as the last one, makes the channels of no group. The
    name of such a layer matches no group.

    Raises:
      ValueError: A name matches neither a layer that makes channels of a group nor a layer that
        keeps all filters. The error names the caller's `argument`, and shows some layers.
    """
    names = list(names)

    def matched(*paths: str) -> set[str]:
        return {n for n in names if any(f"/{n}/" in f"/{path}/" for path in paths)}

    found = [matched(*(p.path for p in producers(group))) for group in groups]
    channels = matched(*(p.path for group in groups for p in group.positions if not p.incoming))
    fixed = matched(*(path for group in groups[:1] for path in group.parameters.paths)) - channels
    for name in names:
        if not any(name in of_group for of_group in (*found, fixed)):
            paths = [p.path for group in groups for p in producers(group)]
            layers = dict.fromkeys(path.rpartition("/")[0] or path for path in paths)
            raise ValueError(
                f"{argument} must match layers with channels that can be removed, such as "
                f"{', '.join(list(layers)[:3])}; {name!r} matches none"
            )
    return found


def check_score_vectors(scores: Scores) -> None:
    """Raise unless `scores` holds a vector of real numbers, without NaN, for each group."""
    if not len(scores):
        raise ValueError("scores must hold one vector for each group; got none")
    for vector in scores:
        if np.ndim(vector) != 1:
            raise ValueError(
                "scores must hold one vector for each group, even for one group; got an element of "
                f"shape {np.shape(vector)}"
            )
        real(scores=np.asarray(vector))
        if bad := int(np.isnan(np.asarray(vector)).sum()):
            raise ValueError(f"scores must hold no NaN; {bad} of {len(vector)} are NaN in a group")


def check_scores(scores: Scores, groups: Sequence[ChannelGroup]) -> None:
    """Raise unless the user's `score` returned a vector without NaN for each group."""
    if not hasattr(scores, "__len__"):
        raise TypeError(f"score must return a list of vectors; got {type(scores).__name__}")
    if len(scores) != len(groups):
        raise ValueError(
            f"score must return one vector per group, {len(groups)} in all; got {len(scores)}"
        )
    for vector, group in zip(scores, groups, strict=True):
        paths = ", ".join(p.path for p in producers(group))
        if np.shape(vector) != (group.size,):
            raise ValueError(
                f"score must return one number for each of the {group.size} channels of {paths}; "
                f"it returns shape {np.shape(vector)}"
            )
        real(**{"the result of score": np.asarray(vector)})
        if bad := int(np.isnan(np.asarray(vector)).sum()):
            raise ValueError(
                f"score must return no NaN; it returns {bad} for the {group.size} channels of "
                f"{paths}"
            )


def _check_ratio(ratio: int | float) -> None:
    if not 0 < ratio < 1:
        raise ValueError(f"ratio must lie in (0, 1); got {ratio}")


def _largest(
    scores: Scores, counts: Sequence[int], min_channels: int, round_to: Sequence[int]
) -> Masks:
    """For each group, a mask of its channels with the largest scores.

    `counts` has the number of channels that each group keeps. `min_channels`, `round_to` and scores
    of ∞ may increase the number of kept channels.
    """
    at_least(1, min_channels=min_channels)
    masks = []
    for vector, count, multiple in zip(scores, counts, round_to, strict=True):
        count = max(count, min_channels, np.isposinf(vector).sum())
        rounded = math.ceil(count / multiple) * multiple
        masks.append(keep_largest(vector, rounded))
    return masks


def keep_largest(scores: Float[Array, " n"], count: int) -> Bool[np.ndarray, " n"]:
    """A mask of the `count` largest scores, or of all scores if there are fewer than `count`."""
    mask = np.ones(len(scores), bool)
    mask[np.asarray(order(jnp.asarray(scores)))[: max(len(scores) - count, 0)]] = False
    return mask
