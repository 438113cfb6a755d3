"""Moments of draws that are merged from those of chunks: states of a fixed size."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geometry.sampling._streams import Reduction
from jaxnorm.internal import CentralMoments, matmul, merge_central_moments, merge_means


class CoMoments(NamedTuple):
    """Mean of `count` vectors δ + mean, and E δᵢ δⱼ, E δᵢ² δⱼ and E δᵢ² δⱼ²."""

    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Float[Array, " d"]
    product: Float[Array, "d d"]
    squared: Float[Array, "d d"]
    both_squared: Float[Array, "d d"]


def _central_moments(draws: Float[Array, "n *s"], counted: Bool[Array, " n"]) -> CentralMoments:
    count, mean, deviation = _deviations(draws, counted)
    square = jnp.square(deviation)
    sums = (square.sum(0), (square * deviation).sum(0), jnp.square(square).sum(0))
    return CentralMoments(count, mean, *(power / jnp.maximum(count, 1) for power in sums))


def _co_moments(draws: Float[Array, "n *s"], counted: Bool[Array, " n"]) -> CoMoments:
    if draws.ndim != 2:
        raise ValueError(f"a covariance needs draws that are vectors; got shape {draws.shape[1:]}")
    count, mean, deviation = _deviations(draws, counted)
    square = jnp.square(deviation)
    pairs = ((deviation, deviation), (square, deviation), (square, square))
    products = (matmul(a.T, b) / jnp.maximum(count, 1) for a, b in pairs)
    return CoMoments(count, mean, *products)


def _merge_co_moments(a: CoMoments, b: CoMoments) -> CoMoments:
    count, mean, share, (deviation_a, deviation_b) = merge_means(a, b)

    def about_union(part: CoMoments, delta: Array) -> Array:
        i, j = delta[:, None], delta[None]
        var = jnp.diagonal(part.product)
        product = part.product + i * j
        squared = part.squared + j * var[:, None] + 2 * i * part.product + i**2 * j
        both_squared = (
            part.both_squared
            + 2 * (j * part.squared + i * part.squared.T)
            + j**2 * var[:, None]
            + i**2 * var[None]
            + 4 * i * j * part.product
            + (i * j) ** 2
        )
        return jnp.stack([product, squared, both_squared])

    products = (1 - share) * about_union(a, deviation_a) + share * about_union(b, deviation_b)
    return CoMoments(count, mean, *products)


def _deviations(
    draws: Float[Array, "n *s"], counted: Bool[Array, " n"]
) -> tuple[Array, Array, Array]:
    """Number and mean of the counted draws, and their deviations; those of the others are 0."""
    counted = counted.reshape(-1, *(1,) * (draws.ndim - 1))
    count = counted.sum(dtype=draws.dtype)
    mean = jnp.where(counted, draws, 0).sum(0) / jnp.maximum(count, 1)
    return count, mean, jnp.where(counted, draws - mean[None], 0)


CENTRAL_MOMENTS = Reduction(_central_moments, merge_central_moments)
CO_MOMENTS = Reduction(_co_moments, _merge_co_moments)
