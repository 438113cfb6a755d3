"""Reads and writes checkpoints by Orbax; no other module uses Orbax.

A checkpoint folder has numbered steps. A step has named trees of arrays and named notes, which are
JSON values. Orbax is imported at the first call, because the import takes a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def manager(
    folder: Path | Any,
    *,
    max_to_keep: int,
    create: bool = True,
    when_written: Callable[[], None] | None = None,
) -> Any:
    """A context manager that writes and reads the steps of a checkpoint folder.

    Args:
      folder: The absolute path of a local folder or of a folder in a bucket.
      max_to_keep: The number of latest steps to keep.
      create: Whether to make the folder and to remove what an interrupted save has left in it.
      when_written: A function that is called when all files of a step are written, before the step
        gets its final name. With `when_written`, `save` returns before the step is written.
    """
    import orbax.checkpoint as ocp

    background: dict[str, Any] = {}
    if when_written is not None:
        # With `create_directories_asynchronously`, threads would wait ten minutes for a folder that
        # cannot be made.
        background = {
            "post_finalization_callback": when_written,
            "create_directories_asynchronously": False,
        }
    options = ocp.CheckpointManagerOptions(
        max_to_keep=max_to_keep,
        create=create,
        cleanup_tmp_directories=create,
        enable_async_checkpointing=when_written is not None,
        async_options=ocp.AsyncOptions(**background),
    )
    return ocp.CheckpointManager(folder, options=options)


def save(steps: Any, step: int, *, arrays: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
    """Write named trees of arrays and named notes as one step, which must be the latest step."""
    import orbax.checkpoint as ocp

    items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
    items |= {name: ocp.args.JsonSave(note) for name, note in notes.items()}
    steps.save(step, args=ocp.args.Composite(**items))


def restore(
    steps: Any, step: int, *, arrays: Mapping[str, Any] | None = None, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The named trees of a step, with the shapes and shardings of `arrays`, and the named notes."""
    import orbax.checkpoint as ocp

    items: dict[str, Any] = {name: ocp.args.JsonRestore() for name in notes}
    items |= {name: ocp.args.StandardRestore(like) for name, like in (arrays or {}).items()}
    return dict(steps.restore(step, args=ocp.args.Composite(**items)))


def shardings(steps: Any, step: int, name: str) -> list[Any]:
    """The shardings with which the arrays in a tree of a step were saved, in the order of leaves.

    A sharding with devices that do not exist in this process is replaced by one device.
    """
    import jax
    import orbax.checkpoint as ocp

    def here(saved: Any) -> Any:
        try:
            return saved and saved.to_jax_sharding()
        except ValueError:
            return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    kinds = ocp.PyTreeCheckpointHandler().metadata(steps.directory / str(step) / name).tree
    return [here(kind.sharding) for kind in jax.tree.leaves(kinds)]


def write_tree(path: Path, tree: Any) -> None:
    """Write a tree of arrays by Orbax's PyTree interface, in Orbax's newest file format."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as checkpointer:
        checkpointer.save(path.resolve(), tree)


def read_tree(path: Path) -> Any:
    """The tree of arrays in an Orbax folder, read into the memory of the host."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    directory: Any = path.resolve()
    kinds = ocp.PyTreeCheckpointHandler().metadata(directory).tree
    # An array of the host needs no devices, so the checkpoint can be from another set of devices.
    options = jax.tree.map(
        lambda kind: ocp.RestoreArgs(restore_type=np.ndarray if hasattr(kind, "shape") else None),
        kinds,
    )
    return ocp.PyTreeCheckpointer().restore(directory, restore_args=options)
