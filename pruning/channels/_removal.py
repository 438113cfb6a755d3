"""Channels taken out of the arrays of a model, or set to zero in them.

Trees are cut by the names of their arrays, so that what an optimizer keeps beside the parameters,
such as optax's momentum, is cut by the same call. What stays keeps its order and its numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxnorm._numerics import check_on_host
from pruning.channels._groups import ChannelGroup, Parameters, Position, described

Keep = Sequence[Bool[Array | np.ndarray, " _"]]
"""For each group, which of its channels stay."""

Stays = dict[tuple[str, int], Any]
"""By array and axis, which indices stay."""


def remove_channels(params: Any, groups: Sequence[ChannelGroup], keep: Keep) -> Any:
    """`params` without the channels that are not kept: every array cut on every coupled axis.

    With the smaller tree the model computes what it computes with `mask_channels`, to rounding.
    Functions and modules that take their widths from the arrays run as they are; after
    `jaxnorm.nnx.fit_widths` so do all of `flax.nnx`; those of `flax.linen` are built anew with the
    `widths` of the result. `keep` decides shapes and is read on the host; `params` may be traced.

    Args:
      params: The tree that the groups were read from, or any that holds arrays of the same names
        and shapes, such as an optimizer's state. An array of another tree belongs to the parameter
        whose path ends as its own does, but for the first name at most. Scalars stay as they are.
      groups: All or some of `coupled_channels`.
      keep: For each group, a boolean vector of its channels: those that stay, at least one.

    Raises:
      TypeError: A vector of `keep` is not boolean, or traced.
      ValueError: `keep` does not fit the groups or keeps no channel; an array of `params` has
        another shape than the groups were read from, or belongs to no parameter.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.ones((2, 3)), "b": np.ones((3, 4))}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 2)))
      >>> smaller = remove_channels(params, groups, [np.array([True, False, True])])
      >>> print(smaller["a"].shape, smaller["b"].shape)
      (2, 2) (2, 4)
    """

    def cut(leaf: Any, axis: int, stays: np.ndarray) -> Any:
        if isinstance(leaf, jax.core.Tracer):
            return leaf.take(np.flatnonzero(stays), axis)
        kept = np.asarray(leaf).take(np.flatnonzero(stays), axis)  # nothing to compile
        return jnp.asarray(kept) if isinstance(leaf, jax.Array) else kept

    check_on_host("remove_channels", keep, instead="of a traced keep, use mask_channels")
    check_keep(groups, keep)
    vectors = [np.asarray(vector) for vector in keep]
    for group, vector in zip(groups, vectors, strict=True):
        if not vector.any():
            raise ValueError(f"keep must hold at least one channel of {name(group)}; got none")
    return _along_channels(cut, params, groups, staying(groups, vectors))


def mask_channels(params: Any, groups: Sequence[ChannelGroup], keep: Keep) -> Any:
    """`params` with zeros at all positions of the channels that are not kept.

    A channel is then zero after its nonlinearity for all that follows, as its place in the next
    kernel is zero too. `keep` may be traced. Arguments and errors are those of `remove_channels`,
    but for a group of which no channel is kept.
    """

    def mask(leaf: Any, axis: int, stays: Any) -> Any:
        shape = [-1 if k == axis else 1 for k in range(leaf.ndim)]
        on_host = isinstance(leaf, np.ndarray) and isinstance(stays, np.ndarray)
        where = np.where if on_host else jnp.where
        return where(stays.reshape(shape), leaf, np.zeros((), leaf.dtype))

    check_keep(groups, keep)
    vectors = [v if isinstance(v, jax.core.Tracer) else np.asarray(v) for v in keep]
    return _along_channels(mask, params, groups, staying(groups, vectors))


def remaining(
    groups: Sequence[ChannelGroup], keep: Sequence[np.ndarray]
) -> tuple[ChannelGroup, ...]:
    """The groups of the tree from which channels were removed, in the same order."""
    stays = staying(groups, keep)
    moved = {key: np.cumsum(vector) - 1 for key, vector in stays.items()}
    parameters = groups[0].parameters if groups else Parameters((), ())
    shapes = tuple(
        tuple(int(stays[path, k].sum()) if (path, k) in stays else n for k, n in enumerate(shape))
        for path, shape in zip(parameters.paths, parameters.shapes, strict=True)
    )
    smaller = parameters._replace(shapes=shapes)
    return tuple(
        ChannelGroup(
            int(vector.sum()),
            tuple(p._replace(indices=moved[p.path, p.axis][p.indices[vector]]) for p in positions),
            smaller,
        )
        for (_, positions, _), vector in zip(groups, keep, strict=True)
    )


def staying(groups: Sequence[ChannelGroup], keep: Sequence[Any]) -> Stays:
    """By array and axis, which indices stay; of the axes that the groups have."""
    found: Stays = {}
    for (_, positions, parameters), vector in zip(groups, keep, strict=True):
        shapes = dict(zip(parameters.paths, parameters.shapes, strict=True))
        for path, axis, indices, _ in positions:
            old = found.get((path, axis), np.ones(shapes[path][axis], bool))
            spread = vector[:, None] & np.ones(indices.shape, bool)
            found[path, axis] = _put(old, indices, spread)
    return found


def _put(old: Any, indices: np.ndarray, values: Any) -> Any:
    if isinstance(values, np.ndarray):
        new = old.copy()
        new[indices] = values
        return new
    return jnp.asarray(old).at[indices].set(values)


def widths(params: Any) -> dict[str, int]:
    """How many outputs each layer has, by its name: the last axis of its kernel.

    What a `flax.linen` module is built with to take a pruned tree.

    Example:
      >>> print(widths({"conv": {"kernel": np.ones((3, 3, 2, 8)), "bias": np.ones(8)}}))
      {'conv': 8}
    """
    paths, shapes = described(params)
    return {
        path.rpartition("/")[0]: shape[-1]
        for path, shape in zip(paths, shapes, strict=True)
        if len(shape) > 1
    }


def check_keep(groups: Sequence[ChannelGroup], keep: Keep) -> None:
    """Raise unless `keep` has one boolean vector of the size of each group."""
    if len(keep) != len(groups):
        raise ValueError(f"keep must hold {len(groups)} vectors, one a group; got {len(keep)}")
    if len({group.parameters for group in groups}) > 1:
        raise ValueError("groups must be of one model; got those of several")
    for group, vector in zip(groups, keep, strict=True):
        if np.shape(vector) != (group.size,):
            raise ValueError(
                f"keep must hold {group.size} values for {name(group)}; got shape "
                f"{np.shape(vector)}"
            )
        if not isinstance(vector, Array | np.ndarray) or vector.dtype != np.bool_:
            found = getattr(vector, "dtype", type(vector).__name__)
            raise TypeError(f"keep must hold arrays of booleans for {name(group)}; got {found}")


def name(group: ChannelGroup) -> str:
    """The first array that a group lies in."""
    return group.positions[0].path


def producers(group: ChannelGroup) -> tuple[Position, ...]:
    """Where the filters lie that make the channels of a group: axes of kernels not summed over.

    Where all are summed over, as between two factors of one matrix, all of these.
    """
    shapes = dict(zip(group.parameters.paths, group.parameters.shapes, strict=True))
    kernels = [p for p in group.positions if np.prod(shapes[p.path]) > shapes[p.path][p.axis]]
    return tuple(p for p in kernels if not p.incoming) or tuple(kernels)


def _along_channels(
    change: Callable[[Any, int, Any], Any], tree: Any, groups: Sequence[ChannelGroup], stays: Stays
) -> Any:
    """`tree` with `change(leaf, axis, stays)` of every array on every axis of channels."""
    if not groups:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    owners = _owners(described(tree), groups[0].parameters)
    for i, path in owners.items():
        for axis in range(leaves[i].ndim):
            if (path, axis) in stays:
                leaves[i] = change(leaves[i], axis, stays[path, axis])
    return jax.tree.unflatten(structure, leaves)


def _owners(tree: Parameters, parameters: Parameters) -> dict[int, str]:
    """The parameter that each array of a tree belongs to, by the number of the array."""
    shapes = dict(zip(parameters.paths, parameters.shapes, strict=True))
    by_end: dict[str, list[str]] = {}
    for path in parameters.paths:
        for end in {path, path.partition("/")[2] or path}:
            by_end.setdefault(end, []).append(path)
    found = {}
    for i, (path, shape) in enumerate(zip(*tree, strict=True)):
        if not shape:
            continue
        ends = [path.split("/", k)[-1] for k in range(path.count("/") + 1)]
        end = next((end for end in ends if end in by_end), "")
        owners = by_end.get(end, [])
        owners = [owner for owner in owners if owner == end] or owners
        if len(owners) != 1:
            raise ValueError(
                f"params must hold arrays that the groups were read from; {path} belongs to "
                f"{' and '.join(owners) or 'none of them'}"
            )
        if shapes[owners[0]] != shape:
            raise ValueError(
                f"params must have the shapes that the groups were read from; {path} must have "
                f"shape {shapes[owners[0]]}, got {shape}"
            )
        found[i] = owners[0]
    return found
