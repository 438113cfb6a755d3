"""Checkpoints of a training run: written in the background, checked when they are read.

The newest two are retained. Each has a checksum of every array: one that is damaged or incomplete
is recognized, and the one before it is used.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jaxtyping import Array, UInt32

Tree = TypeVar("Tree")


class Checkpoints:
    """The checkpoints of one run; as a context manager it waits until they are written."""

    def __init__(self, checkpoint_dir: Path):
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax logs every save
        options = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
        self.manager = ocp.CheckpointManager(checkpoint_dir.resolve(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close()

    def save(self, step: int, state: Any) -> None:
        """Save the state of a step unless there is one; returns before it is written."""
        if step in self.manager.all_steps():
            return
        # Copies, because the next step donates the buffers, which on a CPU are those written.
        leaves = [jnp.copy(leaf) for leaf in jax.tree.leaves(state)]
        sums = [int(value) for value in jax.device_get(checksums(leaves))]
        self.manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(leaves), checksums=ocp.args.JsonSave({"sums": sums})
            ),
        )

    def restore(self, like: Tree, log: Callable[[str], None]) -> Tree:
        """The newest undamaged state, with the shardings of `like`, or `like` if there is none.

        Args:
          like: A state of the same structure, shapes and shardings.
          log: Called with a line for each checkpoint that is damaged.
        """
        leaves, structure = jax.tree.flatten(like)
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                restored = self._read(step, leaves)
            except Exception as error:  # Orbax and TensorStore raise many kinds
                reason = str(error).strip().splitlines()[0][:100] if str(error) else ""
                log(f"checkpoint {step} is damaged ({type(error).__name__}: {reason}): left out")
                self.manager.delete(step)
            else:
                return jax.tree.unflatten(structure, restored)
        return like

    def _read(self, step: int, leaves: list[Array]) -> list[Array]:
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in leaves]
        read = self.manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(shapes), checksums=ocp.args.JsonRestore()
            ),
        )
        sums = [int(value) for value in jax.device_get(checksums(read["state"]))]
        if sums != read["checksums"]["sums"]:
            raise ValueError("its arrays are not those that were written")
        return read["state"]


@jax.jit
def checksums(leaves: list[Array]) -> list[UInt32[Array, ""]]:
    """A checksum of each array's bits and their positions, whatever its sharding."""

    def checksum(leaf: Array) -> UInt32[Array, ""]:
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        odd = (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1).reshape(bits.shape)
        return jnp.sum(bits * odd, dtype=jnp.uint32)

    return [checksum(leaf) for leaf in leaves]
