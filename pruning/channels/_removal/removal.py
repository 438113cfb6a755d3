"""Removes channels from the arrays of a model, or sets them to zero.

Arrays of a tree are matched to parameters by name. Therefore the functions also cut the state of an
optimizer, such as Optax's momentum. The kept channels have the same order and values as before.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jaxtyping import Array, Bool

from jaxnorm.internal import check_on_host
from pruning.channels._coupling.groups import ChannelGroup, Parameters, Position, describe
from pruning.channels._program.calls import Leaf, Tree

Keep = Sequence[Bool[Array | np.ndarray, " _"]]
"""For each group, a mask of the channels that are kept."""

Shape = tuple[int, ...]
KeepMasks = dict[tuple[str, int], Leaf]
"""For each array and axis, a mask of the indices that are kept."""

OF_NO_PARAMETER = "ns_coeffs"  # coefficients of Optax's Muon, which belong to no parameter
OTHER_STATE = "for another optimizer, make a new state of the smaller tree by the optimizer's init"


def remove_channels(params: Tree, groups: Sequence[ChannelGroup], keep: Keep) -> Tree:
    """Remove channels from `params` by cutting every array along every coupled axis.

    If the model has the same program at the smaller widths, the outputs with the smaller tree are
    equal, up to rounding, to the outputs with the tree that `mask_channels` returns.
    `remove_channels` does not check that the program is the same. To check the program, call
    `check_program`. To run a model whose program differs, use `resized`. Functions and modules that
    take their widths from the arrays run on the smaller tree without a change. Most modules of
    `flax.nnx` run on the smaller tree after `jaxnorm.nnx.fit_widths`. Modules of `flax.linen` must
    be built with the numbers that `widths` returns. `keep` determines shapes, so `keep` cannot be
    traced. `params` may be traced, or may be a tree of `jax.ShapeDtypeStruct`. Sharded arrays keep
    their sharding. If the mesh no longer divides an axis evenly, the array is replicated along this
    axis.

    Args:
      params: The tree from which the groups were read, or any tree with arrays of the same names
        and shapes, such as the state of an optimizer. The factored states of the optimizers
        Adafactor and SM3 are also cut. An array of an optimizer's state is cut like a parameter if
        the path of the array ends in the path of the parameter, with or without the first name of
        the parameter's path. Scalars and the coefficients of the optimizer Muon are not changed.
        The states of some optimizers, such as L-BFGS, raise an error. After the removal, Adafactor
        needs a new state if a different axis of a kernel than before is now the longest or the
        second longest, or if an axis is now too short to be factored.
      groups: All or some groups of `coupled_channels`.
      keep: For each group, a boolean vector, true at the channels to keep. At least one element of
        each vector must be true.

    Raises:
      TypeError: A vector of `keep` is not boolean or is traced.
      ValueError: `keep` does not match the groups, or keeps no channel of a group. The shape of an
        array of `params` differs from the shape in the groups, or the path of an array matches no
        parameter or several parameters.

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

    def cut(leaf: Leaf, axis: int, mask: np.ndarray) -> Leaf:
        indices, library = np.flatnonzero(mask), _library(leaf)
        if isinstance(leaf, jax.core.Tracer):
            return leaf.take(indices, axis)
        sharding = _sharding(leaf, axis, indices.size)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            shape = (*leaf.shape[:axis], indices.size, *leaf.shape[axis + 1 :])
            return leaf.update(shape=shape, sharding=sharding)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.jit(lambda x: x.take(indices, axis), out_shardings=sharding)(leaf)
        # NumPy's `take` is used, because JAX's `take` would compile a program for each shape. Only
        # JAX's `take` keeps a weak type, such as the type of `jnp.full(8, 0.1)`.
        weak = jax.typeof(leaf).weak_type
        taken = (leaf if weak else np.asarray(leaf)).take(indices, axis)
        return taken if sharding is None and library is np else jax.device_put(taken, sharding)

    check_on_host("remove_channels", keep, instead="for a traced keep, use mask_channels")
    check_keep(groups, keep)
    return _along_channels(cut, params, groups, keep_masks(groups, list(map(np.asarray, keep))))


def mask_channels(params: Tree, groups: Sequence[ChannelGroup], keep: Keep) -> Tree:
    """Set removed channels in `params` to zero.

    A removed channel adds zero to all later layers, even if a nonlinearity makes the channel
    nonzero, because the weights of the next kernel for the removed channel are also zero. If the
    model divides by an array of a group, or takes its square root or logarithm, only arrays that
    must be zero are set to zero, such as the next kernel. Therefore divisions, roots and logarithms
    cause no infinite values or derivatives, with one exception. If a sum over channels reads a
    root, as in the global response norm of ConvNeXt V2, the root is zero and its derivative is
    infinite. `keep` may be traced. Arguments and errors are the same as for `remove_channels`, but
    a group may lose all channels.
    """

    def zeroed(leaf: Leaf, axis: int, mask: Leaf) -> Leaf:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        library = _library(leaf, mask)
        return library.where(along_axis(mask, axis, leaf.ndim), leaf, library.zeros_like(leaf))

    check_keep(groups, keep, may_be_empty=True)
    vectors = [v if isinstance(v, jax.core.Tracer) else np.asarray(v) for v in keep]
    masked = [g._replace(positions=tuple(p for p in g.positions if p.masked)) for g in groups]
    return _along_channels(zeroed, params, masked, keep_masks(masked, vectors))


def remaining_groups(
    groups: Sequence[ChannelGroup], keep: Sequence[np.ndarray]
) -> tuple[ChannelGroup, ...]:
    """The groups of the channels that remain, with their positions in the smaller tree."""
    masks = keep_masks(groups, keep)
    new_indices = {key: np.cumsum(mask) - 1 for key, mask in masks.items()}
    parameters = groups[0].parameters if groups else Parameters((), ())
    shapes = tuple(
        tuple(int(masks[path, k].sum()) if (path, k) in masks else n for k, n in enumerate(shape))
        for path, shape in zip(parameters.paths, parameters.shapes, strict=True)
    )
    smaller = parameters._replace(shapes=shapes)
    return tuple(
        group._replace(
            size=int(vector.sum()),
            positions=tuple(
                p._replace(indices=new_indices[p.path, p.axis][p.indices[vector]])
                for p in group.positions
            ),
            parameters=smaller,
        )
        for group, vector in zip(groups, keep, strict=True)
    )


def check_smaller(params: Tree, groups: Sequence[ChannelGroup], keep: Sequence[np.ndarray]) -> None:
    """Raise `ValueError` unless the arrays of `params` have the shapes after removal."""
    if not groups:
        return
    smaller, found = remaining_groups(groups, keep)[0].parameters, describe(params)
    both = (zip(*parameters, strict=True) for parameters in (smaller, found))
    for expected, given in zip_longest(*both):
        if expected != given:
            own, other = (
                f"shape {pair[1]} at {pair[0]}" if pair else "no further array"
                for pair in (expected, given)
            )
            raise ValueError(
                "params must be the smaller tree, such as the field params of a Pruned, with "
                f"{own}; got {other}"
            )


def keep_masks(groups: Sequence[ChannelGroup], keep: Sequence[Leaf]) -> KeepMasks:
    """For each array and axis of the groups, a mask of the kept indices."""
    masks: KeepMasks = {}
    for (size, positions, parameters, _), vector in zip(groups, keep, strict=True):
        shapes = dict(zip(parameters.paths, parameters.shapes, strict=True))
        # The appended True keeps the indices that belong to no channel of the group.
        of_channel = _library(vector).append(vector, True)
        for p in positions:
            key, channels = (p.path, p.axis), np.full(shapes[p.path][p.axis], size)
            channels[p.indices] = np.arange(size)[:, None]
            mask = of_channel[channels]
            masks[key] = masks[key] & mask if key in masks else mask
    return masks


def removed_elements(leaf: Leaf, path: str, masks: KeepMasks) -> np.ndarray:
    """A mask of the elements of the array at `path` that belong to removed channels."""
    removed = np.zeros(np.shape(leaf), bool)
    for axis in range(removed.ndim):
        if (mask := masks.get((path, axis))) is not None:
            removed |= ~along_axis(np.asarray(mask), axis, removed.ndim)
    return removed


def along_axis(vector: Leaf, axis: int, ndim: int) -> Leaf:
    """A vector as an array with `ndim` axes, all of size 1 except `axis`."""
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])


def _sharding(leaf: Leaf, axis: int, size: int) -> Sharding | None:
    """The sharding of an array after one of its axes is cut to `size` indices.

    If the mesh does not divide the axis evenly, the array is replicated along this axis.
    """
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        single = isinstance(sharding, SingleDeviceSharding) and getattr(leaf, "committed", True)
        return sharding if single else None
    names = list(sharding.spec)
    if axis < len(names) and names[axis] is not None:
        split = names[axis] if isinstance(names[axis], tuple) else (names[axis],)
        if size % math.prod(sharding.mesh.shape[name] for name in split):
            names[axis] = None
    return NamedSharding(sharding.mesh, PartitionSpec(*names), memory_kind=sharding.memory_kind)


def _library(*arrays: Leaf) -> Any:
    """`jax.numpy` if any of `arrays` belongs to JAX, otherwise NumPy."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def widths(params: Tree) -> dict[str, int]:
    """A dictionary from the name of each layer to the number of outputs of the layer.

    The number of outputs is the size of the last axis of the layer's kernel. To run a pruned tree
    with `flax.linen`, build the module with the numbers of outputs that `widths` returns.

    Example:
      >>> print(widths({"conv": {"kernel": np.ones((3, 3, 2, 8)), "bias": np.ones(8)}}))
      {'conv': 8}
    """
    paths, shapes = describe(params)
    return {
        path.rpartition("/")[0]: shape[-1]
        for path, shape in zip(paths, shapes, strict=True)
        if len(shape) > 1
    }


def check_keep(
    groups: Sequence[ChannelGroup], keep: Keep, what: str = "keep", *, may_be_empty: bool = False
) -> None:
    """Raise unless `keep` has, for each group, one boolean vector with the size of the group.

    Each vector must keep at least one channel, unless `may_be_empty` is true. Error messages use
    the text `what` as the name of `keep`.
    """
    if wrong := [type(group).__name__ for group in groups if not isinstance(group, ChannelGroup)]:
        raise TypeError(f"groups must be a result of coupled_channels; got a list of {wrong[0]}")
    if not isinstance(keep, Sequence) and getattr(keep, "ndim", 0) == 0:
        raise TypeError(f"{what} must be a list of boolean vectors; got {type(keep).__name__}")
    if len(keep) != len(groups):
        raise ValueError(f"{what} must hold {len(groups)} vectors, one per group; got {len(keep)}")
    if len({group.parameters for group in groups}) > 1:
        raise ValueError(
            "groups must all come from one model; these groups come from several models"
        )
    for group, vector in zip(groups, keep, strict=True):
        if np.shape(vector) != (group.size,):
            raise ValueError(
                f"{what} must hold {group.size} values for {name(group)}; got shape "
                f"{np.shape(vector)}"
            )
        dtype = getattr(vector, "dtype", type(vector).__name__)
        if dtype != np.bool_:
            raise TypeError(f"{what} must hold arrays of booleans for {name(group)}; got {dtype}")
    for group, vector in zip(groups, keep, strict=True):
        if not (may_be_empty or np.asarray(vector).any()):
            raise ValueError(f"{what} must hold at least one channel of {name(group)}; got none")


def name(group: ChannelGroup) -> str:
    """The path of the first array that contains channels of a group."""
    return group.positions[0].path


def producers(group: ChannelGroup) -> tuple[Position, ...]:
    """The positions of the filters that make a group's channels.

    The positions are in kernels, and the model does not sum over the axes of the positions. If the
    model sums over the channels of all kernels, as between two factors of a matrix, the result has
    the positions in all kernels. An array is a kernel if it has another axis of size 2 or more
    besides the axis of the channels. If the group has no kernel, all its arrays count as kernels.
    """
    shapes = dict(zip(group.parameters.paths, group.parameters.shapes, strict=True))
    kernels = [p for p in group.positions if np.prod(shapes[p.path]) > shapes[p.path][p.axis]]
    kernels = kernels or list(group.positions)
    return tuple(p for p in kernels if not p.incoming) or tuple(kernels)


def _along_channels(
    change: Callable[[Leaf, int, Leaf], Leaf],
    tree: Tree,
    groups: Sequence[ChannelGroup],
    masks: KeepMasks,
) -> Tree:
    """The `tree` with `change(leaf, axis, mask)` applied to each array and axis with channels."""
    if not groups:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    for i, owner in _owners(describe(tree), groups[0].parameters).items():
        for axis, of_parameter in enumerate(owner.axes):
            if (key := (owner.path, of_parameter)) in masks:
                leaves[i] = change(leaves[i], axis, masks[key])
    return jax.tree.unflatten(structure, leaves)


class Owner(NamedTuple):
    """The parameter that an array belongs to, and the axes of the parameter that the array has."""

    path: str
    axes: tuple[int, ...]


def _owners(tree: Parameters, parameters: Parameters) -> dict[int, Owner]:
    """A dictionary from the index of each array of a tree to the owner of the array."""
    shapes = dict(zip(parameters.paths, parameters.shapes, strict=True))
    by_end: dict[str, list[str]] = {}
    for path in parameters.paths:
        by_end.setdefault(path.partition("/")[2] or path, []).append(path)
    by_end |= {path: [path] for path in parameters.paths}
    pairs = enumerate(zip(*tree, strict=True))
    return {i: _owner(path, shape, shapes, by_end) for i, (path, shape) in pairs if shape}


def _owner(
    path: str, shape: Shape, shapes: Mapping[str, Shape], by_end: Mapping[str, list[str]]
) -> Owner:
    end, candidates = _longest_end(path, by_end)
    before, _, last = path.rpartition("/")
    inner, factors = _longest_end(before, by_end)
    # The optimizer SM3 has an accumulator for each axis of a parameter. The last part of the
    # accumulator's path is the number of the axis.
    if len(factors) == 1 and last.isdigit() and inner.count("/") >= end.count("/"):
        (owner,), axis = factors, int(last)
        if shape == shapes[owner][axis : axis + 1]:
            return Owner(owner, (axis,))
    if not candidates and last == OF_NO_PARAMETER:
        return Owner(path, ())
    if len(candidates) != 1:
        raise ValueError(
            "params must hold the arrays from which the groups were read, or their optimizer "
            f"state; {path} belongs to {' and '.join(candidates) or 'none of them'}; {OTHER_STATE}"
        )
    (owner,) = candidates
    for axes in _axes(path.split("/"), shapes[owner]):
        if shape == tuple(shapes[owner][k] for k in axes) or (shape == (1,) and not axes):
            return Owner(owner, axes)
    raise ValueError(
        f"params must have the shapes of the parameters from which the groups were read; {path} "
        f"must have shape {shapes[owner]}, got {shape}; {OTHER_STATE}"
    )


def _axes(names: Sequence[str], shape: Shape) -> Iterator[tuple[int, ...]]:
    """Each set of axes of a parameter that an array of an optimizer's state can have.

    `names` are the names on the path of the array. An array of Adafactor's state lacks the longest
    or the second longest axis of the parameter, or is an unused placeholder of shape (1,).
    """
    whole = tuple(range(len(shape)))
    yield whole
    ascending = sorted(whole, key=lambda k: (shape[k], k))
    for name, dropped in (("v_row", ascending[-1:]), ("v_col", ascending[-2:-1])):
        if name in names:
            yield tuple(k for k in whole if k not in dropped)
    if {"v", "v_row", "v_col"} & {*names}:
        yield ()


def _longest_end(path: str, by_end: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The longest suffix of `path` that is in `by_end`, and the parameters with this suffix.

    The keys of `by_end` are the paths of parameters, with and without the first name.
    """
    ends = (path.split("/", k)[-1] for k in range(path.count("/") + 1))
    return next(((end, by_end[end]) for end in ends if end in by_end), ("", []))
