"""Groups of coupled channels, and their positions in a tree of arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pruning.channels._program.calls import Leaf, Tree


class Parameters(NamedTuple):
    """The paths and shapes of the arrays of a tree, in the order of the leaves."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Position(NamedTuple):
    """The positions of a group's channels in one array.

    Attributes:
      path: The names on the path from the root of the tree to the array, joined by `/`.
      axis: The axis from which channels are removed.
      indices: The indices of the channels along the axis, (size, repeats), with one row for each
        channel. A channel has several indices if, for example, a feature map is flattened.
      incoming: Whether the model sums over the axis, as over the input axis of a kernel.
      masked: Whether `mask_channels` sets the array to zero at removed channels. If the model
        divides by an array of the group, or takes its square root or logarithm, `masked` is true
        only for arrays that must be zero, such as the kernel that reads the channels.
    """

    path: str
    axis: int
    indices: np.ndarray
    incoming: bool
    masked: bool = True

    def __repr__(self) -> str:
        """The axis and the path, without the indices, because there may be thousands of indices."""
        incoming = ", incoming" if self.incoming else ""
        return f"<axis {self.axis} of {self.path}{incoming}>"


class ChannelGroup(NamedTuple):
    """A group of `size` channels that lie in the same arrays. Each channel can be removed alone.

    `normed` is true if the model sums over the channels of the group, as a norm does, or if a
    constant of the model varies along the channels. If channels of a `normed` group are removed,
    only `resized` can run the smaller model.
    """

    size: int
    positions: tuple[Position, ...]
    parameters: Parameters
    normed: bool = False

    def __repr__(self) -> str:
        """The group in one line, without the paths and shapes of the whole network."""
        normed = ", normed" if self.normed else ""
        return f"<{self.size} channels{normed}: {', '.join(map(repr, self.positions))}>"


class FixedChannels(NamedTuple):
    """Channels that cannot be removed.

    Attributes:
      primitive: The primitive that may compute a different result if the channels are removed, or
        `input` or `output` for channels of inputs or outputs.
      paths: The paths of the arrays that have the channels.
      line: The line of the model's code that calls the primitive. For the primitives `input` and
        `output`, `line` is the path of the array in the tree of inputs or outputs.
    """

    primitive: str
    paths: tuple[str, ...]
    line: str


def describe(params: Tree) -> Parameters:
    """The paths and shapes of all arrays in `params`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = tuple(
        jax.tree_util.keystr(_of_variable(path), simple=True, separator="/") for path, _ in leaves
    )
    return Parameters(paths, tuple(tuple(np.shape(leaf)) for _, leaf in leaves))


def arrays_of(params: Tree) -> list[Leaf]:
    """The leaves of a tree, with Python numbers converted to arrays."""
    leaves = jax.tree.leaves(params)
    return [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves]


def _of_variable(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The `path` without the attribute in which a `flax.nnx` variable stores its array."""
    return path[:-1] if path[-1:] == (jax.tree_util.GetAttrKey("value"),) else path


def parameters_of(params: Tree, groups: Sequence[ChannelGroup]) -> Parameters:
    """The paths and shapes of `params`; raise an error if a group was read from a different tree.

    Raises:
      TypeError: An element of `groups` is not a `ChannelGroup`.
      ValueError: A group was read from a tree whose paths or shapes differ from those of `params`.
    """
    parameters = describe(params)
    for group in groups:
        if not isinstance(group, ChannelGroup):
            wrong = type(group).__name__ if isinstance(groups, list | tuple) else None
            got = f"a list of {wrong}" if wrong else type(groups).__name__
            raise TypeError(f"groups must be a result of coupled_channels; got {got}")
        if group.parameters != parameters:
            expected, found = (set(zip(*p, strict=True)) for p in (group.parameters, parameters))
            path, shape = min(expected ^ found, default=("the order", "of arrays"))
            raise ValueError(
                "params must have the paths and shapes of the parameters from which the groups "
                f"were read; they differ in {path} {shape}"
            )
    return parameters
