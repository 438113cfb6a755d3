"""Writes and reads checkpoints of pruned networks.

Orbax writes the smaller arrays. The kept indices and the widths are written as metadata. A
checkpoint can be read without the large network.
"""

import itertools
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from jaxnorm.internal import as_path, check_on_host, checkpoints
from pruning._arguments import check_values
from pruning.channels._coupling.groups import (
    ChannelGroup,
    Parameters,
    Position,
    arrays_of,
    describe,
)
from pruning.channels._program.calls import Apply, Leaf, Tree
from pruning.channels._program.interpret import check_apply
from pruning.channels._removal.removal import check_smaller, keep_masks
from pruning.channels._removal.resizing import Resized, resized

# Orbax's suffix for the folder of a step that is not completely saved
UNFINISHED = ".orbax-checkpoint-tmp"
Notes = dict[str, Any]
"""The metadata of a checkpoint, which is stored as JSON."""
Indices = Mapping[str, Mapping[int, Sequence[int]]]
"""For each array and axis, the indices of the large network that were kept."""


class Pruned(NamedTuple):
    """A pruned network, with its arrays, the function that runs the network, and the kept channels.

    A `Pruned` is a pytree with the leaves of `params`, so `jax.jit`, `jax.grad` and optimizers
    accept it.

    Attributes:
      params: The smaller tree of arrays.
      groups: The groups of channels of the large network.
      keep: For each group, a mask of the channels that were kept.
      apply: The function that runs the smaller tree, `apply(params, *inputs)`. `apply` is the
        function that was pruned or, with `resize`, the result of `resized` for this function.
    """

    params: Tree
    groups: tuple[ChannelGroup, ...]
    keep: tuple[np.ndarray, ...]
    apply: Apply

    def kept_indices(self) -> Indices:
        """For each array and axis, the indices of the large network that were kept."""
        indices: dict[str, dict[int, list[int]]] = {}
        for (path, axis), mask in keep_masks(self.groups, self.keep).items():
            indices.setdefault(path, {})[axis] = np.flatnonzero(mask).tolist()
        return indices


class _Fixed:
    """The fields of a `Pruned` that are not arrays.

    Two objects of this class are equal if their `parts` are the same objects.
    """

    def __init__(self, parts: tuple[Any, ...]):
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and all(map(operator.is_, self.parts, other.parts))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.parts)))


jax.tree_util.register_pytree_with_keys(
    Pruned,
    lambda x: (((jax.tree_util.GetAttrKey("params"), x.params),), _Fixed(x[1:])),
    lambda fixed, children: Pruned(*children, *fixed.parts),
)


def save_pruned(
    checkpoint_dir: Path | str, pruned: Pruned, *, step: int = 1, ratios: Sequence[int | float] = ()
) -> None:
    """Write a checkpoint to `checkpoint_dir`. An earlier checkpoint in the folder is replaced.

    Args:
      checkpoint_dir: The folder of the checkpoint. A missing folder is created.
      pruned: A result of `prune`, or another `Pruned`.
      step: The number of pruning steps so far.
      ratios: The schedule of ratios or budgets of the run. `prune` resumes only if it is called
        with the same schedule.

    Raises:
      TypeError: `pruned` is not a `Pruned` but, for example, a model from `pruning.nnx.prune`.
      ValueError: The arrays of `pruned.params` do not have the shapes after removal.
    """
    if not isinstance(pruned, Pruned):
        raise TypeError(
            f"pruned must be a Pruned, such as the result of pruning.prune; got a "
            f"{type(pruned).__name__}: save a module with pruning.weights.save"
        )
    write(checkpoint_dir, pruned, step, ratios, None)


def write(
    checkpoint_dir: Path | str,
    pruned: Pruned,
    step: int,
    ratios: Sequence[int | float],
    original: int | None,
) -> None:
    """Write a checkpoint, as `save_pruned` does.

    `original` is the checksum of the arrays before pruning, or None.
    """
    check_on_host(
        "save_pruned", pruned.params, instead="return the arrays, and save them outside jit"
    )
    check_values("save_pruned", pruned.params)
    check_smaller(pruned.params, pruned.groups, pruned.keep)
    leaves, (paths, shapes) = arrays_of(pruned.params), describe(pruned.params)
    large = pruned.groups[0].parameters.shapes if pruned.groups else shapes
    metadata = {
        "step": operator.index(step),
        "ratios": np.asarray(ratios).tolist(),
        "paths": list(paths),
        "dtypes": [str(leaf.dtype) for leaf in leaves],
        "widths": [list(shape) for shape in shapes],
        "widths before": [list(shape) for shape in large],
        "structure": _structure(pruned.params),
        "groups": [_group(*pair) for pair in zip(pruned.groups, pruned.keep, strict=True)],
        "resized": isinstance(pruned.apply, Resized),
        "original": original,
        "checksum": _checksum(leaves),
    }
    with _manager(as_path(checkpoint_dir, "checkpoint_dir")) as manager:
        # Orbax keeps only the checkpoint with the highest number. When the new checkpoint is
        # complete, Orbax removes the earlier checkpoint.
        number = (manager.latest_step() or 0) + 1
        checkpoints.save(manager, number, arrays={"arrays": leaves}, notes={"pruning": metadata})


def _checksum(tree: Tree) -> int | None:
    """The CRC-32 of the bytes of all arrays; None if this process cannot read an array."""
    total, leaves = 0, jax.tree.leaves(tree)
    if not all(leaf.is_fully_addressable for leaf in leaves if isinstance(leaf, jax.Array)):
        return None
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.ascontiguousarray(jax.random.key_data(leaf) if is_key else leaf)
        total = zlib.crc32(array.reshape(-1).view(np.uint8).data, total)
    return total


def load_pruned(
    checkpoint_dir: Path | str, apply: Apply | None = None, *, like: Tree = None
) -> Pruned:
    """Read a checkpoint that `save_pruned` or `prune` wrote; the large network is not needed.

    Args:
      checkpoint_dir: The folder of the checkpoint.
      apply: The function that was pruned. Without `apply`, the result has the arrays and the kept
        channels, but cannot run.
      like: A tree of arrays or shapes with the structure of the result's `params`, such as
        `nnx.state(nnx.eval_shape(build))` for a function `build` that makes the network. The widths
        of `like` are the saved widths or the widths before pruning. Trees of dictionaries, lists
        and tuples do not need `like`. Without `like`, all containers of the tree become nested
        dictionaries, whose keys are the names on the path from the root to each array.

    Raises:
      TypeError: `apply` is not a function.
      ValueError: The folder has no checkpoint, the checkpoint is damaged, or `like` has other
        arrays or widths than the checkpoint. If no `apply` was given, a call of the result's
        `apply` raises a ValueError.
    """
    if apply is not None:
        check_apply(apply)
    return _load(*_read(as_path(checkpoint_dir, "checkpoint_dir")), apply, like)


def _load(metadata: Notes, leaves: list[Leaf], apply: Apply | None, like: Tree) -> Pruned:
    if like is not None:
        _check_like(describe(like), metadata)
        tree: Tree = jax.tree.unflatten(jax.tree.structure(like), leaves)
    elif (structure := metadata.get("structure")) is not None:
        tree = _read_tree(structure, iter(leaves))
    else:
        pairs = zip(metadata["paths"], leaves, strict=True)
        tree = unflatten_dict(dict(pairs), sep="/")
    shapes = tuple(map(tuple, metadata["widths before"]))
    parameters = Parameters(tuple(metadata["paths"]), shapes)
    read = [_read_group(group, parameters) for group in _groups_of(metadata)]
    groups, keep = tuple(group for group, _ in read), tuple(mask for _, mask in read)
    run = _missing if apply is None else apply
    return Pruned(tree, groups, keep, resized(run, groups, keep) if metadata["resized"] else run)


def _missing(*_: Tree) -> Tree:
    raise ValueError(
        "load_pruned needs the function that was pruned, in order to run the network: pass apply="
    )


def _group(group: ChannelGroup, mask: np.ndarray) -> Notes:
    """A group and its kept channels as JSON.

    Indices that several arrays of the group have in common are written once.
    """
    tables: dict[bytes, int] = {}
    positions = []
    for path, axis, indices, *flags in group.positions:
        number = tables.setdefault(np.asarray(indices, np.int64).tobytes(), len(tables))
        positions.append([path, axis, number, *flags])
    size = group.size
    rows = [np.frombuffer(table, np.int64).reshape(size, -1).tolist() for table in tables]
    keep = np.flatnonzero(mask).tolist()
    return {"keep": keep, "normed": group.normed, "positions": positions, "indices": rows}


def _read_group(written: Notes, parameters: Parameters) -> tuple[ChannelGroup, np.ndarray]:
    tables = [np.array(rows, int) for rows in written["indices"]]
    positions = tuple(
        Position(path, axis, tables[number], *flags)
        for path, axis, number, *flags in written["positions"]
    )
    size = len(tables[0])
    group = ChannelGroup(size, positions, parameters, written["normed"])
    return group, np.isin(np.arange(size), written["keep"])


def _groups_of(metadata: Notes) -> list[Notes]:
    """The groups in the metadata of a checkpoint.

    A checkpoint of version 0.1 has kept indices instead of groups. From the kept indices, this
    function makes one group for each axis that was cut.
    """
    if "groups" in metadata:
        return metadata["groups"]
    metadata["resized"] = False  # version 0.1 did not write the entry `resized`
    sizes = dict(zip(metadata["paths"], metadata["widths before"], strict=True))
    return [
        {
            "keep": keep,
            "normed": False,
            "positions": [[path, int(axis), 0, False]],
            "indices": [[[i] for i in range(sizes[path][int(axis)])]],
        }
        for path, axes in metadata["kept"].items()
        for axis, keep in axes.items()
    ]


def _structure(tree: Tree) -> Any:
    """The structure of a tree as JSON.

    The result is None if the tree has other containers than dictionaries, lists and tuples.
    """
    counter = itertools.count()
    numbered = jax.tree.map(lambda _: next(counter), tree)

    def write(node: Tree) -> Any:
        kind = type(node)
        if kind is int or node is None:
            return node
        if kind in (list, tuple):
            return [kind.__name__, *map(write, node)]
        if kind is dict and all(type(key) in (str, int) for key in node):
            return ["dict", *([key, write(value)] for key, value in sorted(node.items()))]
        raise TypeError(kind)

    try:
        return write(numbered)
    except TypeError:
        return None


def _read_tree(written: Any, leaves: Iterator[Leaf]) -> Tree:
    if isinstance(written, int):
        return next(leaves)
    if written is None:
        return None
    kind, *items = written
    if kind == "dict":
        return {key: _read_tree(value, leaves) for key, value in items}
    read = [_read_tree(item, leaves) for item in items]
    return read if kind == "list" else tuple(read)


def resume(
    checkpoint_dir: Path | str, start: Pruned, apply: Apply, ratios: Sequence[int | float]
) -> tuple[Pruned, int, int | None]:
    """The network that an earlier run of `prune` saved, and the number of completed pruning steps.

    The third result is the checksum of the arrays before pruning, or None. If there is no
    checkpoint, the first two results are `start` (the network before pruning) and 0. `apply` is the
    function that is being pruned.
    """
    original = _checksum(start.params)
    folder = as_path(checkpoint_dir, "checkpoint_dir")
    found = folder.iterdir() if folder.is_dir() else ()
    if all(path.name.endswith(UNFINISHED) for path in found):
        return start, 0, original
    metadata, leaves = _read(folder)
    if metadata["ratios"] != list(ratios):
        raise ValueError(
            f"checkpoint_dir must hold a run with the ratios or budgets {list(ratios)}; the run in "
            f"{checkpoint_dir} has {metadata['ratios']}"
        )
    other = (
        f"checkpoint_dir must hold a run that began with these params; the run in {checkpoint_dir} "
        "began with other arrays: give the params of that run, or another checkpoint_dir"
    )
    try:
        loaded = _load(metadata, leaves, apply, start.params)
    except ValueError as error:
        raise ValueError(other) from error
    if metadata.get("original") not in (None, original):
        raise ValueError(other)
    axes = [{(p.path, p.axis) for g in x.groups for p in g.positions} for x in (loaded, start)]
    if "groups" in metadata and (differing := axes[0] ^ axes[1]):
        raise ValueError(
            f"checkpoint_dir must hold a run with the same exclude and resize; the run in "
            f"{checkpoint_dir} has others, which concern {min(differing)[0]}: give the options of "
            "that run, or another checkpoint_dir"
        )
    indices, keep = loaded.kept_indices(), []
    for group in start.groups:
        first = group.positions[0]
        own = indices.get(first.path, {}).get(first.axis, first.indices)
        keep.append(np.isin(first.indices[:, 0], own))
    masks = tuple(keep)
    whole = isinstance(start.apply, Resized)
    run = resized(apply, start.groups, masks) if whole else apply
    return Pruned(loaded.params, start.groups, masks, run), metadata["step"], original


def _manager(checkpoint_dir: Path, *, create: bool = True) -> Any:
    if checkpoint_dir.exists() and not checkpoint_dir.is_dir():
        raise ValueError(f"checkpoint_dir must be a folder; {checkpoint_dir} is a file")
    return checkpoints.manager(checkpoint_dir.resolve(), max_to_keep=1, create=create)


def _read(checkpoint_dir: Path) -> tuple[Notes, list[Leaf]]:
    """The metadata and the arrays of the latest step in a checkpoint."""
    none = ValueError(
        f"checkpoint_dir must hold a checkpoint of a pruned network; {checkpoint_dir} holds none"
    )
    damaged = ValueError(
        "checkpoint_dir must hold a whole checkpoint of a pruned network; the checkpoint in "
        f"{checkpoint_dir} is damaged: prune again with another checkpoint_dir"
    )
    if not checkpoint_dir.is_dir():
        raise none
    with _manager(checkpoint_dir, create=False) as manager:
        if (step := manager.latest_step()) is None:
            raise none
        try:
            metadata = checkpoints.restore(manager, step, notes=("pruning",))["pruning"]
            shardings = checkpoints.shardings(manager, step, "arrays")
            like = [
                jax.ShapeDtypeStruct(
                    s, jax.random.key(0).dtype if "key<" in name else np.dtype(name), sharding=where
                )
                for s, name, where in zip(
                    metadata["widths"], metadata["dtypes"], shardings, strict=True
                )
            ]
            leaves = checkpoints.restore(manager, step, arrays={"arrays": like})["arrays"]
        except Exception as error:  # Orbax and TensorStore raise many types of exceptions
            raise damaged from error
    if metadata.get("checksum") not in (None, _checksum(leaves)):
        raise damaged
    return metadata, leaves


def _check_like(like: Parameters, metadata: Notes) -> None:
    paths = metadata["paths"]
    if list(like.paths) != paths:
        ours, theirs = set(paths), set(like.paths)
        path = min(ours ^ theirs, default="")
        where = "was saved, but is not in like" if path in ours else "was not saved"
        found = f"{path} {where}" if path else "like has them in another order"
        raise ValueError(
            f"like must have the arrays that were saved; {found}: build like from a network of the "
            "same class and options"
        )
    saved, before = (list(map(tuple, metadata[key])) for key in ("widths", "widths before"))
    if list(like.shapes) == before:
        return
    for path, shape, small, large in zip(paths, like.shapes, saved, before, strict=True):
        if shape != small:
            earlier = "" if small == large else f", or {large} as before pruning"
            raise ValueError(
                f"like must have the widths that were saved; {path} must have shape "
                f"{small}{earlier}, got {shape}"
            )
