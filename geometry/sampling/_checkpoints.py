"""Moments of draws on disk, written and read by Orbax."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, Key

from geometry.sampling._moments import CentralMoments


def save(checkpoint_dir: Path, key: Key[Array, ""], state: CentralMoments, keys: int) -> None:
    """Write the moments of the draws of the first `keys` keys."""
    leaves = [np.asarray(leaf) for leaf in (jax.random.key_data(key), *state)]
    with _manager(checkpoint_dir) as manager:
        manager.save(keys, args=ocp.args.StandardSave(leaves), force=True)


def restore(
    checkpoint_dir: Path, key: Key[Array, ""], state: CentralMoments
) -> tuple[CentralMoments, int]:
    """Moments and number of keys in `checkpoint_dir`; `state` and 0 where it has none."""
    with _manager(checkpoint_dir) as manager:
        keys = manager.latest_step()
        if keys is None:
            return state, 0
        template = [np.asarray(leaf) for leaf in (jax.random.key_data(key), *state)]
        data, *leaves = _leaves(manager, keys, template, checkpoint_dir)
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in state]:
        raise ValueError(
            f"checkpoint_dir must be of draws of the shape {state.mean.shape}; "
            f"{checkpoint_dir} is of {leaves[1].shape}"
        )
    if not np.array_equal(data, template[0]):
        raise ValueError(f"checkpoint_dir must be of the same key; {checkpoint_dir} is of another")
    return CentralMoments(*map(jnp.asarray, leaves)), keys


def _leaves(
    manager: ocp.CheckpointManager, keys: int, template: list[np.ndarray], checkpoint_dir: Path
) -> Any:
    try:
        return manager.restore(keys, args=ocp.args.StandardRestore(template))
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise ValueError(
            f"checkpoint_dir must be an estimate's; {checkpoint_dir} cannot be read "
            f"({type(error).__name__})"
        ) from error


def _manager(checkpoint_dir: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, cleanup_tmp_directories=True, enable_async_checkpointing=False
    )
    return ocp.CheckpointManager(checkpoint_dir.resolve(), options=options)
