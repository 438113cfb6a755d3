"""Unitized batch norm of vectors, Algorithm 1 of Huang and Yu, with rules of differentiation.

A sum over a vector is here as large a task as the result, and XLA's CPU back end takes less time
for a product with a vector of ones than for a sum. The rules are exact and can be differentiated
again. They are there to say which arrays of the data's size a program forms, and when: each in the
place of one that is done with, so that beside results it needs none.

Two habits of that back end decide how formulas are written. A vector that ends in a division it
computes once, any other anew for every entry of the loop that reads it: so divisions come last.
And it forms every array as early as it can.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import Correction, given
from jaxnorm._statistics import BatchStatistics, Shards, shifted


class Rows(NamedTuple):
    """Vectors, their mean in two parts of which the first is a constant, and their variance."""

    x: Float[Array, "n c"]
    shift: Float[Array, " c"]
    offset: Float[Array, " c"]
    var: Float[Array, " c"]
    statistics: BatchStatistics


def rows_of(
    x: Float[Array, "n c"],
    keep: Bool[Array, " n"] | None,
    statistics: BatchStatistics | None,
    shards: Shards,
    correction: Correction | None,
) -> Rows:
    """Where vectors in at least float32 lie, by their own statistics or by the given ones."""
    if statistics is not None:
        stats = given(statistics, x)
        return Rows(x, jnp.zeros_like(stats.mean), stats.mean, stats.var, stats)
    _, shift = shifted(x, keep, shards)
    counted = x if keep is None else jnp.where(keep[:, None], x, shift[None])
    kept = jnp.ones(len(x), x.dtype) if keep is None else keep.astype(x.dtype)
    count = shards.total(kept.sum())
    offset, var = _moments(shards, counted, shift, kept / jnp.maximum(count, 1))
    corrected = var if correction is None else var * correction(count)
    return Rows(x, shift, offset, corrected, BatchStatistics(shift + offset, var, count))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moments(
    shards: Shards, x: Float[Array, "n c"], shift: Float[Array, " c"], share: Float[Array, " n"]
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Mean less the shift, and variance. Shift and shares, which add up to one, are constants."""
    mean = shards.total(product(share, x - shift[None]))
    return mean, shards.total(product(share, jnp.square(centred(x, shift, mean))))


@_moments.defjvp
def _(shards: Shards, primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    x, shift, share = primals
    dx, *_ = tangents
    mean, var = _moments(shards, x, shift, share)
    # That the mean moves with x has no part in it: deviations from the mean add up to zero.
    dvar = 2 * product(share, centred(x, shift, mean) * dx)
    return (mean, var), (shards.total(product(share, dx)), shards.total(dvar))


@jax.custom_jvp
def norms_of(
    x: Float[Array, "n c"],
    shift: Float[Array, " c"],
    offset: Float[Array, " c"],
    var: Float[Array, " c"],
) -> Float[Array, " n"]:
    """‖x̂‖² of every vector. The shift is a constant."""
    return product(jnp.square(centred(x, shift, offset)), 1 / var)


@norms_of.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    x, shift, offset, var = primals
    dx, _, doffset, dvar = tangents
    h = centred(x, shift, offset)
    moved = doffset / var
    by_vector = 2 * product(h * dx, 1 / var)
    # Of x itself: of x − shift it would be an array more. A mean of 1000 standard deviations costs
    # gradients of small batches two digits here.
    by_mean = 2 * (product(x, moved) - product(shift + offset, moved))
    # Not a product of the squares: on the way back they would have to be kept.
    wide = outer(jnp.ones(len(x), x.dtype), (dvar / var) / var)
    by_var = product(h * (h * wide), jnp.ones_like(var))
    return norms_of(x, shift, offset, var), by_vector - by_mean - by_var


@jax.custom_jvp
def scaled(
    x: Float[Array, "n c"],
    shift: Float[Array, " c"],
    offset: Float[Array, " c"],
    var: Float[Array, " c"],
    r: Float[Array, " n"],
    first: Float[Array, " c"],
    second: Float[Array, " c"],
    bias: Float[Array, " c"],
) -> Float[Array, "n c"]:
    """(first + r second) x̂ + bias, r not negative. The shift is a constant."""
    sd = jnp.sqrt(var)
    gain = (first / sd)[None] + r[:, None] * (second / sd)[None]
    return gain * centred(x, shift, offset) + bias[None]


@scaled.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    x, shift, offset, var, r, first, second, _ = primals
    dx, _, doffset, dvar, dr, dfirst, dsecond, dbias = tangents
    sd, ones = jnp.sqrt(var), jnp.ones_like(r)
    a, b = first / sd, second / sd
    moved, grown = doffset / sd, dvar / var / 2
    # Divided by r here and multiplied by it below: on the way back the product with x̂ then waits
    # until the squares are done with, whose place it takes.
    s = jnp.maximum(r, jnp.finfo(r.dtype).tiny)
    dgain = _rank_two((1 / s, ones), (dfirst / sd - a * grown, dsecond / sd - b * grown))
    dgain = s[:, None] * (dgain + outer(dr / s, b))
    gain = a[None] + r[:, None] * b[None]
    dbias = _rank_two((ones, r), (dbias - first * moved, -second * moved))
    return scaled(*primals), gain * dx + dgain * centred(x, shift, offset) + dbias


def centred(
    x: Float[Array, "n c"], shift: Float[Array, " c"], offset: Float[Array, " c"]
) -> Float[Array, "n c"]:
    """x less both, without rounding their sum: a large mean costs no digits."""
    return (x - shift[None]) - offset[None]


def inverse_root(square: Array) -> Array:
    """1 / √square, and 1 where `square` is zero."""
    positive = square > 0
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, square, 1)), 1)


def product(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.matmul(a, b, precision="highest")


def outer(a: Float[Array, " n"], b: Float[Array, " m"]) -> Float[Array, "n m"]:
    """a bᵀ as a matrix product, of which the derivatives are products with vectors too."""
    return product(a[:, None], b[None])


def _rank_two(a: tuple[Array, Array], b: tuple[Array, Array]) -> Float[Array, "n m"]:
    """a₁ b₁ᵀ + a₂ b₂ᵀ as one matrix product: both sums of its derivative read the data once."""
    return jnp.einsum("kn,km->nm", jnp.stack(a), jnp.stack(b), precision="highest")
