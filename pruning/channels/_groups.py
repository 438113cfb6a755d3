"""Channels that belong together, and where they lie in a tree of arrays."""

from typing import Any, NamedTuple

import jax
import numpy as np

from pruning.channels._ids import FIXED, Joins

Axis = tuple[int, int]
"""An axis of an array of a tree: the number of the array, the number of the axis."""


class Parameters(NamedTuple):
    """Paths and shapes of the arrays of a tree, in its order."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Position(NamedTuple):
    """Where the channels of a group lie in one array.

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
    """`size` channels that lie in the same arrays; each can go without the others."""

    size: int
    positions: tuple[Position, ...]
    parameters: Parameters


class FixedChannels(NamedTuple):
    """Channels that stay because of one primitive, and the arrays, by path, that hold them."""

    primitive: str
    paths: tuple[str, ...]


class Labelled(NamedTuple):
    """The joined labels of a model; `axes`: the first label of each axis that has labels."""

    joins: Joins
    parameters: Parameters
    axes: list[tuple[int, Axis]]

    def axis_numbers(self, labels: np.ndarray) -> np.ndarray:
        """Which of `axes` the first labels of parameters, `labels`, belong to."""
        starts = [start for start, _ in self.axes]
        return np.unique(np.searchsorted(starts, labels, side="right") - 1)

    def incoming(self) -> set[Axis]:
        """The axes of parameters that sums run over."""
        vectors = self.joins.incoming
        labels = np.concatenate([*vectors, np.zeros(0, int)])
        return {self.axes[k][1] for k in self.axis_numbers(labels[labels > FIXED])}


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
