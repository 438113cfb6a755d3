"""Checkpoints of pruned networks: small arrays, and as metadata what was kept of which widths.

Written by Orbax; read without the network that was pruned.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxnorm._numerics import check_on_host
from pruning.channels._groups import ChannelGroup, Parameters, described
from pruning.channels._removal import staying

Indices = Mapping[str, Mapping[int, Sequence[int]]]
"""By array and axis, the indices of the large network that were kept."""


class Pruned(NamedTuple):
    """A pruned network, and how it lies in the one that it was made from.

    Attributes:
      params: The smaller tree.
      groups: Channels of the large network that could go.
      keep: For each group, which of its channels stayed.
    """

    params: Any
    groups: tuple[ChannelGroup, ...]
    keep: tuple[np.ndarray, ...]

    def kept(self) -> Indices:
        """By array and axis, the indices that were kept."""
        found: dict[str, dict[int, list[int]]] = {}
        for (path, axis), stays in staying(self.groups, self.keep).items():
            found.setdefault(path, {})[axis] = np.flatnonzero(stays).tolist()
        return found


class Loaded(NamedTuple):
    """A pruned network read from a checkpoint.

    Attributes:
      params: Its arrays, in dictionaries by the parts of their paths or in a given structure.
      kept: By array and axis, the indices of the large network that were kept.
      step: How many steps of pruning lie behind it.
    """

    params: Any
    kept: Indices
    step: int


def save_pruned(
    folder: Path | str, pruned: Pruned, *, step: int = 1, ratios: Sequence[float] = ()
) -> None:
    """Write a checkpoint to `folder`, in place of an earlier one, from the host.

    Args:
      folder: Made where there is none.
      pruned: From `prune`, or of your own making.
      step: Steps of pruning that lie behind it; a folder keeps the latest.
      ratios: The schedule, so that `prune` goes on with no other.
    """
    check_on_host("save_pruned", pruned.params, instead="return the arrays and save them then")
    paths, shapes = described(pruned.params)
    metadata = {
        "step": step,
        "ratios": list(ratios),
        "paths": list(paths),
        "dtypes": [str(leaf.dtype) for leaf in jax.tree.leaves(pruned.params)],
        "widths": [list(shape) for shape in shapes],
        "widths before": [list(shape) for shape in pruned.groups[0].parameters.shapes],
        "kept": {p: {str(k): v for k, v in axes.items()} for p, axes in pruned.kept().items()},
    }
    arrays = ocp.args.StandardSave(jax.tree.leaves(pruned.params))
    with _manager(Path(folder)) as manager:
        parts = ocp.args.Composite(arrays=arrays, pruning=ocp.args.JsonSave(metadata))
        manager.save(step, args=parts, force=True)


def load_pruned(folder: Path | str, like: Any = None) -> Loaded:
    """The network that `save_pruned` or `prune` wrote to `folder`; no large one is needed.

    Args:
      folder: Holds the checkpoint.
      like: A tree of arrays or shapes whose structure the arrays shall have, of the widths that
        were saved or of those before pruning, such as `nnx.state(nnx.eval_shape(build))`.

    Raises:
      ValueError: There is no checkpoint, or `like` has other arrays or other widths.
    """
    metadata = _metadata(Path(folder))
    paths, shapes = metadata["paths"], [tuple(shape) for shape in metadata["widths"]]
    if like is not None:
        before = [tuple(shape) for shape in metadata["widths before"]]
        _check_like(described(like), paths, shapes, before)
    leaves = _arrays(Path(folder), metadata["step"], shapes, metadata["dtypes"])
    kept = {p: {int(k): v for k, v in axes.items()} for p, axes in metadata["kept"].items()}
    if like is not None:
        tree: Any = jax.tree.unflatten(jax.tree.structure(like), leaves)
    else:
        tree = _nested(paths, leaves)
    return Loaded(tree, kept, metadata["step"])


def resumed(
    folder: Path, params: Any, groups: tuple[ChannelGroup, ...], ratios: Sequence[float]
) -> tuple[Pruned, int] | None:
    """What an earlier run of `prune` with these arguments left in `folder`, and its steps."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    metadata = _metadata(folder)
    if metadata["ratios"] != list(ratios):
        raise ValueError(
            f"folder must hold a run of the ratios {list(ratios)}; {folder} holds one of "
            f"{metadata['ratios']}"
        )
    loaded = load_pruned(folder, params)
    keep = []
    for group in groups:
        first = group.positions[0]
        kept = loaded.kept.get(first.path, {}).get(first.axis, first.indices)
        keep.append(np.isin(first.indices[:, 0], kept))
    return Pruned(loaded.params, groups, tuple(keep)), loaded.step


def _manager(folder: Path, *, create: bool = True) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1,
        create=create,
        cleanup_tmp_directories=create,
        enable_async_checkpointing=False,
    )
    return ocp.CheckpointManager(folder.resolve(), options=options)


def _metadata(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ValueError(f"folder must hold a checkpoint of a pruned network; {folder} is none")
    with _manager(folder, create=False) as manager:
        step = manager.latest_step()
        if step is None:
            raise ValueError(
                f"folder must hold a checkpoint of a pruned network; {folder} holds none"
            )
        parts = ocp.args.Composite(pruning=ocp.args.JsonRestore())
        return manager.restore(step, args=parts)["pruning"]


def _arrays(
    folder: Path, step: int, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> list[Any]:
    like = [
        jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype if "key<" in name else np.dtype(name))
        for shape, name in zip(shapes, dtypes, strict=True)
    ]
    with _manager(folder, create=False) as manager:
        parts = ocp.args.Composite(arrays=ocp.args.StandardRestore(like))
        return manager.restore(step, args=parts)["arrays"]


def _check_like(
    like: Parameters,
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    before: Sequence[tuple[int, ...]],
) -> None:
    if list(like.paths) != list(paths):
        ours, theirs = set(paths), set(like.paths)
        different = sorted(ours ^ theirs) or sorted(paths)
        where = "is missing" if different[0] in ours else "is not saved"
        raise ValueError(f"like must have the arrays that were saved; {different[0]} {where}")
    if list(like.shapes) == list(before):
        return
    for path, found, small, large in zip(paths, like.shapes, shapes, before, strict=True):
        if found != small:
            earlier = "" if small == large else f", or {large} as before pruning"
            raise ValueError(
                f"like must have the widths that were saved; {path} must have shape "
                f"{small}{earlier}, got {found}"
            )


def _nested(paths: Sequence[str], leaves: Sequence[Any]) -> Any:
    tree: Any = {}
    for path, leaf in zip(paths, leaves, strict=True):
        *parents, last = path.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = leaf
    return tree
