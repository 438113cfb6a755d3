"""Merges removed channels with similar kept channels, to restore accuracy without data.

If two channels are equal, a single channel can replace the two channels: its weights in the next
kernels are the sums of the weights of the two channels. If two channels are similar, a channel with
the mean of their filters is a good replacement. A plan T is a matrix that says how much of channel
i is moved to kept channel j. New filters and biases are means of old filters and biases with the
weights T[i, j] / Σᵢ T[i, j]. New rows of the next kernels are sums of old rows with the weights
T[i, j] / Σⱼ T[i, j]. The outputs of a mean of different filters have a smaller variance than the
outputs of the single filters. If the network divides the outputs of a merged filter by a running
standard deviation, the merged filter is scaled up, so that for white inputs the variance of its
outputs equals the running variance. Sources are Wang et al. (2025), Theus et al. (2024) and Jordan
et al. (2023).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal import check_on_host
from pruning._arguments import check_tuple, check_values
from pruning.channels._coupling.channel_ids import FIXED
from pruning.channels._coupling.coupling import TracedChannels, channels_of, report_of
from pruning.channels._coupling.groups import ChannelGroup, Position, parameters_of
from pruning.channels._program.calls import Apply, Tree
from pruning.channels._program.interpret import live_program
from pruning.channels._program.lines import at, line_of
from pruning.channels._removal.removal import Keep, check_keep, name
from pruning.channels._repair.gains import Gain, gains
from pruning.channels._repair.merge_plans import Plans, clusters
from pruning.channels._repair.parameters import check_solved, network_of


def merge_channels(
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    keep: Keep,
    *,
    inputs: Sequence[Tree],
    plan: Plans = clusters,
) -> Tree:
    """Merge removed channels of `params` into similar kept channels.

    Call `merge_channels` before `remove_channels`.

    Channels are compared by their biases and their scaled filters. If the network divides the
    outputs of a filter by a running standard deviation, the norm of the scaled filter is the gain
    times this standard deviation. For a batch norm, the norm of a scaled filter is approximately
    the learned scale. Without a running variance, the filter is only multiplied by the gain of its
    outputs. For white inputs of the layer, and without additive shifts, the distance between two
    scaled filters is the root mean square difference between the inputs of the nonlinearity in the
    two channels. Running means are merged with the filters. Merged filters are scaled such that,
    for white inputs, the variance of their outputs is the mean of the running variances of the
    filters that were merged. Equal channels are merged without loss.

    The arguments `apply`, `params`, `groups` and `keep` are the same as for `fold_constants`.

    Args:
      inputs: The other arguments of `apply`. Only their shapes matter.
      plan: A function such as `clusters` or `transport`. The function is called for each group of n
        channels, with the d numbers by which each channel is compared, (n, d), and the mask of kept
        channels, (n,). The plan is a matrix (n, k) without rows or columns of zeros, where k is the
        number of kept channels.

    Returns:
      A tree of the same shapes as `params`. The values at removed channels have no meaning.

    Raises:
      ValueError: An operation without a kernel, such as a norm or a product of queries with keys,
        sums over a group that has removed channels. A constant or random bits vary along removed
        channels. A kernel with removed inputs is computed from other parameters, is read more than
        once, or is read inside a loop, a branch or a `shard_map`. Filters are not finite. A plan
        has a wrong shape, negative or infinite numbers, or a row or a column of zeros. The groups
        were not read from `params`. `apply` cannot be traced at the given arguments.
        `remove_channels` would raise an error.
      TypeError: `remove_channels` would raise a TypeError.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[1.0, 1.0, -2.0]]), "b": np.array([[3.0], [4.0], [5.0]])}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 1)))
      >>> keep = [np.array([True, False, True])]
      >>> merged = merge_channels(mlp, params, groups, keep, inputs=[np.ones((1, 1))])
      >>> print(merged["a"][:, keep[0]], merged["b"][keep[0], 0])
      [[ 1. -2.]] [7. 5.]
    """
    check_on_host("merge_channels", (params, keep), instead="merge before compiling")
    check_values("merge_channels", params)
    check_keep(groups, keep)
    cut = [(g, v) for g, v in zip(groups, map(np.asarray, keep), strict=True) if not v.all()]
    if not cut:
        return params
    parameters = parameters_of(params, groups)
    check_tuple(inputs, "inputs")
    channels = channels_of(apply, params, inputs)
    network = network_of(live_program(channels.program), parameters.shapes)
    check_solved([group for group, _ in cut], network, alone=True)
    _check_sums_and_constants([group for group, _ in cut], channels)
    leaves = list(map(jnp.asarray, jax.tree.leaves(params)))
    merging = Merging(parameters.paths, leaves, gains(network, leaves))
    merging.choose(cut, plan)
    vectors = merging.vectors()
    leaves = merging.kernels(vectors, gains(network, vectors))
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _check_sums_and_constants(groups: Sequence[ChannelGroup], channels: TracedChannels) -> None:
    """Raise if an equation that is not a product with a kernel sums over channels of the groups.

    The function also raises an error if a constant or random bits vary along these channels,
    because channels with equal filters then have different outputs.
    """
    sets = channels.sets
    for required in sets.zeroed:
        if required.incoming is not None:
            continue
        roots = np.setdiff1d(sets.find(required.ids), [FIXED])
        for group in groups:
            first = group.positions[0]
            ids = channels.ids_of(first.path, first.axis)[first.indices]
            if np.isin(sets.find(ids), roots).any():
                raise ValueError(
                    f"only kernels may sum merged channels; channels of {name(group)} are summed "
                    f"by {required.equations[-1].primitive.name}{at(line_of(required.equations))}"
                )
    # After the check above, no activations of the groups are summed. A group is then `normed` only
    # if a constant varies along its channels.
    for group in (group for group in groups if group.normed):
        places = [(channels.parameters.paths.index(p.path), p.axis) for p in group.positions]
        axes = list(map(channels.axes.index, places))
        found = (pinned for pinned in sets.pinned if pinned.normed)
        by = report_of(max(found, key=lambda pinned: np.isin(axes, pinned.axes).sum()))
        raise ValueError(
            f"constants must not vary along merged channels; channels of {name(group)} have "
            f"different constants in {by.primitive}{at(by.line)}"
        )


class Merge(NamedTuple):
    """A group with removed channels, the mask of its kept channels, and its plan."""

    group: ChannelGroup
    keep: np.ndarray
    plan: np.ndarray

    def along(self, x: np.ndarray, position: Position) -> np.ndarray:
        """The array `x` after its channels along the axis of `position` are merged.

        Rows of inputs are summed and filters of outputs are averaged, with the weights of the plan.
        """
        weights = self.plan / self.plan.sum(1 if position.incoming else 0, keepdims=True)
        x = x.copy()
        rows = np.moveaxis(x, position.axis, 0)
        merged = np.tensordot(weights.T, rows[position.indices], 1)
        rows[position.indices[self.keep]] = merged
        return x


class Merging:
    """Chooses plans from the features of channels, and merges the arrays of a network."""

    def __init__(self, paths: Sequence[str], leaves: Sequence[Array], found: Mapping[int, Gain]):
        self.paths, self.leaves, self.found = paths, leaves, found
        self.before = {a.leaf: (i, a) for i, gain in found.items() for a in gain.before}
        self.factors = {leaf: i for i, gain in found.items() for leaf in gain.leaves}
        self.merges: list[Merge] = []

    def choose(self, cut: Sequence[tuple[ChannelGroup, np.ndarray]], plan: Plans) -> None:
        for group, keep in cut:
            features = self.features(group)
            if not np.isfinite(features).all():
                raise ValueError(f"filters of {name(group)} must be finite; they have NaN or inf")
            chosen = np.asarray(plan(features, keep), np.float64)
            shape = (group.size, int(keep.sum()))
            valid = chosen.shape == shape and (np.isfinite(chosen) & (chosen >= 0)).all()
            if not (valid and chosen.any(0).all() and chosen.any(1).all()):
                raise ValueError(
                    f"plan must return a matrix of shape ({shape[0]}, {shape[1]}) for "
                    f"{name(group)}, with finite numbers that are not negative and no row or "
                    f"column of zeros; got shape {chosen.shape}"
                )
            self.merges.append(Merge(group, keep, chosen))

    def features(self, group: ChannelGroup) -> np.ndarray:
        """The numbers by which the channels of a group are compared, one row for each channel."""
        columns = []
        for p in group.positions:
            i = self.paths.index(p.path)
            if not p.incoming and i not in self.before and i not in self.factors:
                rows = np.moveaxis(self.filters(i), p.axis, 0)[p.indices]
                columns.append(rows.reshape(group.size, -1))
        return np.concatenate(columns, 1).view(np.float64)  # `view` splits real and imaginary parts

    def filters(self, i: int) -> np.ndarray:
        """The filters in parameter `i`, scaled if the parameter is a kernel with a gain."""
        gain, leaf = self.found.get(i), self.leaves[i]
        if gain is None:
            return np.asarray(leaf, np.complex128 if jnp.iscomplexobj(leaf) else np.float64)
        matrix = np.asarray(gain.maker.matrix(leaf), np.float64)
        if gain.variances:
            matrix = matrix * _quotient(gain.of_outputs(gain.deviation), _length(matrix))
        else:
            matrix = matrix * gain.of_outputs(gain.array)
        return np.asarray(gain.maker.kernel(matrix, leaf), np.float64)

    def vectors(self) -> list[Array]:
        """Merge all arrays except kernels with a gain and parameters added before a gain."""
        return [
            self.merged(i, self.sign(i))
            if any(self.positions(i)) and i not in self.before and i not in self.found
            else leaf
            for i, leaf in enumerate(self.leaves)
        ]

    def sign(self, i: int) -> np.ndarray:
        """Parameter `i`, with signs changed such that the gain computed from it is positive.

        The filters are multiplied by the signs of the old gains, so all gains are positive after
        the merge.
        """
        x, kernel = np.array(self.leaves[i]), self.factors.get(i)
        if kernel is None or i in self.found[kernel].variances:
            return x
        gain = self.found[kernel]
        of_kernel = np.asarray(gain.maker.kernel(gain.of_outputs(gain.array), self.leaves[kernel]))
        for merge, p in self.positions(i):
            for q in (q for m, q in self.positions(kernel, incoming=False) if m is merge):
                rows = np.moveaxis(of_kernel, q.axis, 0)[q.indices].reshape(merge.group.size, -1)
                signs = np.where(rows.mean(1) < 0, -1, 1).astype(x.dtype)
                rows = np.moveaxis(x, p.axis, -1)
                rows[..., p.indices] *= signs[:, None]
        return x

    def kernels(self, leaves: Sequence[Array], after: Mapping[int, Gain]) -> list[Array]:
        """Merge the arrays that `vectors` does not merge.

        `leaves` is the result of `vectors`, and the gains `after` are computed from `leaves`.
        """
        leaves = list(leaves)
        for i, gain in self.found.items():
            if not list(self.positions(i, incoming=False)):
                leaves[i] = self.merged(i, np.asarray(leaves[i]))
                continue
            factor = _quotient(self.growth(i, after[i]), after[i].of_outputs(after[i].array))
            of_gain = gain.of_outputs(gain.array)
            scaled = gain.maker.kernel(
                np.asarray(gain.maker.matrix(leaves[i])) * of_gain, leaves[i]
            )
            merged = gain.maker.matrix(self.merged(i, np.asarray(scaled)))
            leaves[i] = gain.maker.kernel(np.asarray(merged) * factor, leaves[i])
            for addend in gain.before:
                if not list(self.positions(addend.leaf)):
                    continue  # the addend is one number for all channels
                leaf = leaves[addend.leaf]
                scaled = leaf * gain.of_parameter(addend, of_gain, leaf)
                merged = self.merged(addend.leaf, np.asarray(scaled))
                leaves[addend.leaf] = merged * gain.of_parameter(addend, factor, leaf)
        return leaves

    def growth(self, i: int, after: Gain) -> np.ndarray:
        """The factor that scales the outputs of merged filters to the running variance.

        The factor is one if the merged filter is zero, or if there is no running variance.
        """
        if not after.variances:
            return np.ones((1, 1, 1))
        filters = self.merged(i, self.filters(i), incoming=False)
        length = _length(np.asarray(after.maker.matrix(filters), np.float64))
        deviation = np.abs(after.of_outputs(after.deviation))
        return np.where(length > 0, _quotient(deviation, length), 1)

    def merged(self, i: int, x: np.ndarray, *, incoming: bool = True) -> Array:
        """The array `x`, shaped like parameter `i`, after its channels are merged along each axis.

        If `incoming` is false, axes of inputs are not merged.
        """
        if jnp.issubdtype(x.dtype, jnp.inexact):
            for merge, position in self.positions(i, incoming=incoming):
                x = merge.along(x, position)
        return jnp.asarray(x)

    def positions(self, i: int, *, incoming: bool = True) -> Iterator[tuple[Merge, Position]]:
        """The merges and positions of parameter `i`; axes of inputs are included if `incoming`."""
        for merge in self.merges:
            for p in merge.group.positions:
                if p.path == self.paths[i] and (incoming or not p.incoming):
                    yield merge, p


def _length(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.norm(matrix, axis=1, keepdims=True)


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The quotient x / y, or zero if y is zero."""
    return np.where(y != 0, x / np.where(y != 0, y, 1), 0)
