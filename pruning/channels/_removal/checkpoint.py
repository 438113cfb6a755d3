"""Checkpoints of pruned networks: small arrays, and as metadata the kept indices and the widths.

Written by Orbax; read without the network that was pruned.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from jaxnorm._numerics import check_on_host
from pruning._arguments import check_values
from pruning.channels._coupling.groups import ChannelGroup, Parameters, described
from pruning.channels._removal.removal import keep_masks

UNFINISHED = ".orbax-checkpoint-tmp"  # ends the name of a step that was not saved to its end
Indices = Mapping[str, Mapping[int, Sequence[int]]]
"""By array and axis, the indices of the large network that were kept."""


class Pruned(NamedTuple):
    """A pruned network, and which channels it has of the one that it was made from.

    Attributes:
      params: The smaller tree.
      groups: Channels of the large network that could be removed.
      keep: For each group, which of its channels were kept.
    """

    params: Any
    groups: tuple[ChannelGroup, ...]
    keep: tuple[np.ndarray, ...]

    def kept_indices(self) -> Indices:
        """By array and axis, the indices that were kept."""
        indices: dict[str, dict[int, list[int]]] = {}
        for (path, axis), mask in keep_masks(self.groups, self.keep).items():
            indices.setdefault(path, {})[axis] = np.flatnonzero(mask).tolist()
        return indices


class Loaded(NamedTuple):
    """A pruned network read from a checkpoint.

    Attributes:
      params: Its arrays, in dictionaries by the parts of their paths or in a given structure.
      kept_indices: By array and axis, the indices of the large network that were kept.
      step: How many steps of pruning it has had.
    """

    params: Any
    kept_indices: Indices
    step: int


def save_pruned(
    checkpoint_dir: Path | str, pruned: Pruned, *, step: int = 1, ratios: Sequence[int | float] = ()
) -> None:
    """Write a checkpoint to `checkpoint_dir`, in place of an earlier one, from the host.

    Args:
      checkpoint_dir: Made where there is none.
      pruned: From `prune`, or of your own making.
      step: Steps of pruning that it has had; only the latest is kept.
      ratios: The schedule, or budgets, so that `prune` resumes with no other.
    """
    import orbax.checkpoint as ocp  # takes a second

    check_on_host("save_pruned", pruned.params, instead="return the arrays and save them then")
    check_values("save_pruned", pruned.params)
    paths, shapes = described(pruned.params)
    metadata = {
        "step": step,
        "ratios": list(ratios),
        "paths": list(paths),
        "dtypes": [str(leaf.dtype) for leaf in jax.tree.leaves(pruned.params)],
        "widths": [list(shape) for shape in shapes],
        "widths before": [list(shape) for shape in pruned.groups[0].parameters.shapes],
        "kept": {
            p: {str(k): v for k, v in axes.items()} for p, axes in pruned.kept_indices().items()
        },
    }
    arrays = ocp.args.StandardSave(jax.tree.leaves(pruned.params))
    with _manager(Path(checkpoint_dir)) as manager:
        parts = ocp.args.Composite(arrays=arrays, pruning=ocp.args.JsonSave(metadata))
        manager.save(step, args=parts, force=True)


def load_pruned(checkpoint_dir: Path | str, like: Any = None) -> Loaded:
    """The network that `save_pruned` or `prune` wrote to `checkpoint_dir`; no large one is needed.

    Args:
      checkpoint_dir: Holds the checkpoint.
      like: A tree of arrays or shapes whose structure the arrays will have, of the widths that
        were saved or of those before pruning, such as `nnx.state(nnx.eval_shape(build))`.

    Raises:
      ValueError: There is no checkpoint, or `like` has other arrays or other widths.
    """
    return _loaded(*_read(Path(checkpoint_dir)), like)


def _loaded(metadata: dict[str, Any], leaves: list[Any], like: Any) -> Loaded:
    if like is None:
        pairs = zip(metadata["paths"], leaves, strict=True)
        tree: Any = unflatten_dict(dict(pairs), sep="/")
    else:
        _check_like(described(like), metadata)
        tree = jax.tree.unflatten(jax.tree.structure(like), leaves)
    indices = {p: {int(k): v for k, v in axes.items()} for p, axes in metadata["kept"].items()}
    return Loaded(tree, indices, metadata["step"])


def resumed(
    checkpoint_dir: Path,
    params: Any,
    groups: tuple[ChannelGroup, ...],
    ratios: Sequence[int | float],
) -> tuple[Pruned, int] | None:
    """What an earlier run of `prune` with these arguments saved, and the number of its steps."""
    found = checkpoint_dir.iterdir() if checkpoint_dir.is_dir() else ()
    if all(path.name.endswith(UNFINISHED) for path in found):
        return None
    metadata, leaves = _read(checkpoint_dir)
    if metadata["ratios"] != list(ratios):
        raise ValueError(
            f"checkpoint_dir must hold a run of the ratios or budgets {list(ratios)}; "
            f"{checkpoint_dir} holds one of {metadata['ratios']}"
        )
    loaded = _loaded(metadata, leaves, params)
    keep = []
    for group in groups:
        first = group.positions[0]
        indices = loaded.kept_indices.get(first.path, {}).get(first.axis, first.indices)
        keep.append(np.isin(first.indices[:, 0], indices))
    return Pruned(loaded.params, groups, tuple(keep)), loaded.step


def _manager(checkpoint_dir: Path, *, create: bool = True) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=1,
        create=create,
        cleanup_tmp_directories=create,
        enable_async_checkpointing=False,
    )
    return ocp.CheckpointManager(checkpoint_dir.resolve(), options=options)


def _read(checkpoint_dir: Path) -> tuple[dict[str, Any], list[Any]]:
    """The metadata and the arrays of the latest step."""
    import orbax.checkpoint as ocp

    none = ValueError(
        f"checkpoint_dir must hold a checkpoint of a pruned network; {checkpoint_dir} holds none"
    )
    if not checkpoint_dir.is_dir():
        raise none
    with _manager(checkpoint_dir, create=False) as manager:
        if (step := manager.latest_step()) is None:
            raise none
        json = ocp.args.Composite(pruning=ocp.args.JsonRestore())
        metadata = manager.restore(step, args=json)["pruning"]
        like = [
            jax.ShapeDtypeStruct(s, jax.random.key(0).dtype if "key<" in name else np.dtype(name))
            for s, name in zip(metadata["widths"], metadata["dtypes"], strict=True)
        ]
        arrays = ocp.args.Composite(arrays=ocp.args.StandardRestore(like))
        return metadata, manager.restore(step, args=arrays)["arrays"]


def _check_like(like: Parameters, metadata: dict[str, Any]) -> None:
    paths = metadata["paths"]
    if list(like.paths) != paths:
        ours, theirs = set(paths), set(like.paths)
        different = sorted(ours ^ theirs) or sorted(paths)
        where = "is missing" if different[0] in ours else "is not saved"
        raise ValueError(f"like must have the arrays that were saved; {different[0]} {where}")
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
