"""Coupled channels, and their positions in a tree of arrays."""

from typing import Any, NamedTuple

import jax
import numpy as np

from pruning.channels._channel_ids import FIXED, UnionFind

Axis = tuple[int, int]
"""An axis of an array of a tree: the number of the array, the number of the axis."""


class Parameters(NamedTuple):
    """Paths and shapes of the arrays of a tree, in its order."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Position(NamedTuple):
    """Where the channels of a group are in one array.

    Attributes:
      path: Names on the way to the array, with `/` between them.
      axis: The axis to cut.
      indices: One row a channel: (size, repeats). There are several where a map is flattened.
      incoming: Whether the model sums over this axis: the inputs of a kernel.
    """

    path: str
    axis: int
    indices: np.ndarray
    incoming: bool


class ChannelGroup(NamedTuple):
    """`size` channels in the same arrays; each can be removed without the others."""

    size: int
    positions: tuple[Position, ...]
    parameters: Parameters


class FixedChannels(NamedTuple):
    """Channels that cannot be removed, by one primitive; the arrays, by path, that hold them."""

    primitive: str
    paths: tuple[str, ...]


class TracedChannels(NamedTuple):
    """The united ids of a model; `axes`: the first id of each axis that has ids."""

    sets: UnionFind
    parameters: Parameters
    axes: list[tuple[int, Axis]]

    def axis_numbers(self, ids: np.ndarray) -> np.ndarray:
        """Which of `axes` the first ids of parameters, `ids`, are on."""
        starts = [start for start, _ in self.axes]
        return np.unique(np.searchsorted(starts, ids, side="right") - 1)

    def incoming(self) -> set[Axis]:
        """The axes of parameters that sums run over."""
        ids = np.concatenate([*self.sets.incoming, np.zeros(0, int)])
        return {self.axes[k][1] for k in self.axis_numbers(ids[ids > FIXED])}


def described(params: Any) -> Parameters:
    """Paths and shapes of the arrays of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = tuple(
        jax.tree_util.keystr(_of_variable(path), simple=True, separator="/") for path, _ in leaves
    )
    return Parameters(paths, tuple(tuple(np.shape(leaf)) for _, leaf in leaves))


def _of_variable(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """`path` without the attribute in which a variable of `flax.nnx` keeps its array."""
    return path[:-1] if path and path[-1] == jax.tree_util.GetAttrKey("value") else path
