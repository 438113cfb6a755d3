"""Moments of draws that are merged from those of chunks: states of a fixed size."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geometry.sampling._streams import Reduction
from jaxnorm._numerics import matmul


class CentralMoments(NamedTuple):
    """Mean of `count` samples, and the means of the powers 2, 3 and 4 of the deviations from it."""

    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Float[Array, "*s"]
    second: Float[Array, "*s"]
    third: Float[Array, "*s"]
    fourth: Float[Array, "*s"]


def merge_means(a: Any, b: Any) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Count and mean of the union of two sets of samples, each a tuple with `count` and `mean`.

    Also the share of `b` in the union, and the deviations of the means of `a` and `b` from its
    mean. A set without samples has deviation 0, whatever its mean is.
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    # The mean of no samples is arbitrary, and the square of its deviation might overflow.
    delta = jnp.where((a.count > 0) & (b.count > 0), b.mean - a.mean, 0)
    mean = jnp.where(a.count > 0, a.mean + share * delta, b.mean)
    return count, mean, share, (-share * delta, (1 - share) * delta)


def merge_central_moments(a: CentralMoments, b: CentralMoments) -> CentralMoments:
    """Moments of the union of two sets of samples, Pébay (2008); the order does not matter."""
    count, mean, share, (deviation_a, deviation_b) = merge_means(a, b)

    def about_union(part: CentralMoments, delta: Array) -> Array:
        """Moments of `part` about the mean of the union, from which its own deviates by `delta`."""
        second = part.second + delta * delta
        third = part.third + 3 * delta * part.second + delta**3
        fourth = part.fourth + 4 * delta * part.third + 6 * delta**2 * part.second + delta**4
        return jnp.stack([second, third, fourth])

    powers = (1 - share) * about_union(a, deviation_a) + share * about_union(b, deviation_b)
    return CentralMoments(count, mean, *powers)


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
