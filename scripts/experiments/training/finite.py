"""End a run that diverges before its invalid state is saved."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from experiments.cli import InputError
from experiments.training.checkpoints import Checkpoints


def check_finite(part: str, values: Any, step: int, checkpoints: Checkpoints) -> None:
    """Raise an error, which ends the run, if an element of `values` is infinite or NaN.

    Raises:
      InputError: An element is not finite; the message uses the name `part` for the values.
    """
    if is_finite(values):
        return
    last = checkpoints.newest()
    saved, advice = "no checkpoint is kept", "lower --learning-rate"
    if last:
        saved = f"the last good checkpoint is of step {last}"
        advice += ", with another --out"
    raise InputError(
        f"the {part} must remain finite; by step {step} it had become infinite or NaN: {saved}; "
        f"{advice}"
    )


@jax.jit
def is_finite(values: Any) -> Bool[Array, ""]:
    """Whether every element of a tree is finite."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(values)]).all()
