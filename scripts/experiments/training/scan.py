"""Train small networks without a recipe, in one compiled scan.

In `Trainer`, a recipe fixes initialization, optimizer and the order of batches, and the training
returns to Python after every few steps. Experiments that use this module supply their own
initialization, optimizer and batches. One scan takes all steps, because a step takes less time than
starting it from Python. To train several networks, apply `vmap`.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jaxtyping import Array, Float


def scan_steps(
    loss: Callable[[Any, Any], Float[Array, ""]],
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    batches: Any,
) -> tuple[Any, Any]:
    """Take one step for each batch; return the final parameters and the final optimizer state.

    Args:
      loss: A function that takes parameters and a batch, and returns the loss.
      optimizer: Optax optimizer.
      params: Parameters before the first step.
      optimizer_state: State of the optimizer before the first step.
      batches: Arrays whose first axis counts steps. The arrays are the batches, or values from
        which `loss` makes the batches, such as indices or a random key.
    """

    def step(carry: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], None]:
        params, optimizer_state = carry
        gradient = jax.grad(loss)(params, batch)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), None

    return jax.lax.scan(step, (params, optimizer_state), batches)[0]
