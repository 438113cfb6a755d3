"""Computes the moments of one chunk of draws."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm.internal import CentralMoments


def central_moments(draws: Float[Array, "n *s"], counted: Bool[Array, " n"]) -> CentralMoments:
    """The central moments of the draws that a mask selects."""
    count, mean, deviation = _deviations(draws, counted)
    square = jnp.square(deviation)
    sums = (square.sum(0), (square * deviation).sum(0), jnp.square(square).sum(0))
    return CentralMoments(count, mean, *(power / jnp.maximum(count, 1) for power in sums))


def _deviations(
    draws: Float[Array, "n *s"], counted: Bool[Array, " n"]
) -> tuple[Array, Array, Array]:
    """The number, the mean and the deviations of the selected draws.

    The deviation of a draw that is not selected is 0.
    """
    counted = counted.reshape(-1, *(1,) * (draws.ndim - 1))
    count = counted.sum(dtype=draws.dtype)
    mean = jnp.where(counted, draws, 0).sum(0) / jnp.maximum(count, 1)
    return count, mean, jnp.where(counted, draws - mean[None], 0)
