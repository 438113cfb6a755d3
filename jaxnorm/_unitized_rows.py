"""Unitized batch norm of vectors, Algorithm 1 of Huang and Yu, with rules of differentiation.

A sum over a vector is here as large a task as the result, and XLA's CPU back end takes less time
for a product with a vector of ones than for a sum. The rules are exact and can be differentiated
again. They are there to say which arrays of the data's size a program forms, and when: each in the
place of one that is done with, so that beside results it needs none.

Two habits of that back end decide how formulas are written. A vector that ends in a division it
computes once, any other anew for every entry of the loop that reads it: so divisions come last.
And it forms every array as early as it can.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import Correction, given
from jaxnorm._statistics import BatchStatistics, Shards, shifted

# Channels from which on vectors are wide: see `Rows`.
WIDE = 256


class Rows(NamedTuple):
    """Vectors, their mean, and their variance with eps.

    `moved` and `grown` are zeros that change as mean and variance do, divided by the variance. The
    rules read the changes there: what comes back then ends in one division each, and the last loop
    reads one vector for it.

    Narrow vectors, and any for Eq. 9, are less a constant shift, and the mean is the one that is
    left. It is there twice, as `less` negated and once for every vector. What comes through `less`
    on the way back is an array of the data's size. The variance's part is added before it is
    summed, so that it waits for the squares, whose place it takes.

    Other wide vectors stand as they came, and no array is formed for their mean or its gradient: a
    pass over the data less each. The mean is then right to 4 eps of its dtype, and a product with
    the data rounds where the mean is large, but reaches gradients through norms only, divided by
    the width.
    """

    x: Float[Array, "n c"]
    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    moved: Float[Array, " c"]
    grown: Float[Array, " c"]
    less: Float[Array, "n c"] | None


def rows_of(
    x: Float[Array, "n c"],
    keep: Bool[Array, " n"] | None,
    statistics: BatchStatistics | None,
    shards: Shards,
    correction: Correction | None,
    eps: float,
    as_they_came: bool,
) -> tuple[Rows, BatchStatistics]:
    """Where vectors in at least float32 lie, by their own statistics or by the given ones."""
    ones = jnp.ones(len(x), x.dtype)
    if statistics is not None:
        mean, var, _ = stats = given(statistics, x)
        return _rows(x, mean, var + eps, None if as_they_came else outer(ones, -mean)), stats
    less_sample, shift = shifted(x, keep, shards)
    h = x if as_they_came else less_sample
    counted = h if keep is None else jnp.where(keep[:, None], h, 0)
    weights = ones if keep is None else keep.astype(x.dtype)
    count = shards.total(weights.sum())
    share = weights / jnp.maximum(count, 1)
    if as_they_came:
        less = None
        whole = mean = _snapped(shards.total(counted.sum(0)) / jnp.maximum(count, 1), shift)
        var = shards.total(_variance(counted, mean, share))
    else:
        mean = shards.total(product(share, counted))
        less, whole = outer(ones, -mean), shift + mean
        var = shards.total(product(share, jnp.square(counted + less)))
    corrected = var if correction is None else var * correction(count)
    return _rows(h, mean, corrected + eps, less), BatchStatistics(whole, var, count)


def _rows(x: Array, mean: Array, var: Array, less: Array | None) -> Rows:
    return Rows(x, mean, var, _relative(mean, var), _relative(var, var), less)


@jax.custom_jvp
def _relative(a: Float[Array, " c"], var: Float[Array, " c"]) -> Float[Array, " c"]:
    """Zeros that change as `a` does, divided by the variance."""
    return jnp.zeros_like(a)


@_relative.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]):
    return _relative(*primals), tangents[0] / primals[1]


def _snapped(mean: Float[Array, " c"], sample: Float[Array, " c"]) -> Float[Array, " c"]:
    """`mean`, or the sample where they differ by no more than a sum rounds: constants are exact."""
    off = jax.lax.stop_gradient(sample - mean)
    rounding = 4 * jnp.finfo(mean.dtype).eps * jnp.abs(sample)
    return mean + jnp.where(jnp.abs(off) <= rounding, off, 0)


@jax.custom_jvp
def _variance(
    x: Float[Array, "n c"], mean: Float[Array, " c"], share: Float[Array, " n"]
) -> Float[Array, " c"]:
    """Mean square about the mean. The shares, which add up to one, are constants."""
    return product(share, jnp.square(x - mean[None]))


@_variance.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    x, mean, share = primals
    # That the mean moves has no part in it: deviations from the mean add up to zero.
    return _variance(*primals), 2 * product(share, (x - mean[None]) * tangents[0])


def centred(rows: Rows) -> Float[Array, "n c"]:
    return rows.x - rows.mean[None] if rows.less is None else rows.x + rows.less


@jax.custom_jvp
def norms_of(rows: Rows) -> Float[Array, " n"]:
    """‖x̂‖² of every vector."""
    return product(jnp.square(centred(rows)), 1 / rows.var)


@norms_of.defjvp
def _(primals: tuple[Rows], tangents: tuple[Rows]):
    (rows,), (d,) = primals, tangents
    h, var = centred(rows), rows.var
    by_vector = 2 * product(h * (d.x if d.less is None else d.x + d.less), 1 / var)
    if rows.less is None:
        by_vector -= 2 * (product(rows.x, d.moved) - product(rows.mean, d.moved))
    # Not a product of the squares: on the way back they would have to be kept.
    wide = outer(jnp.ones(len(h), h.dtype), d.grown / var)
    by_var = product(h * (h * wide), jnp.ones_like(var))
    return norms_of(rows), by_vector - by_var


@jax.custom_jvp
def scaled(
    rows: Rows,
    r: Float[Array, " n"],
    first: Float[Array, " c"],
    second: Float[Array, " c"],
    bias: Float[Array, " c"],
) -> Float[Array, "n c"]:
    """(first + r second) x̂ + bias, r not negative."""
    sd = jnp.sqrt(rows.var)
    gain = (first / sd)[None] + r[:, None] * (second / sd)[None]
    return gain * (rows.x - rows.mean[None]) + bias[None]


@scaled.defjvp
def _(primals: tuple[Rows, *tuple[Array, ...]], tangents: tuple[Rows, *tuple[Array, ...]]):
    rows, r, first, second, _ = primals
    d, dr, dfirst, dsecond, dbias = tangents
    sd, ones = jnp.sqrt(rows.var), jnp.ones_like(r)
    a, b = first / sd, second / sd
    moved, grown = d.moved * sd, d.grown / 2
    # Divided by r here and multiplied by it below: on the way back the product with x̂ then waits
    # until the squares are done with, whose place it takes.
    s = jnp.maximum(r, jnp.finfo(r.dtype).tiny)
    dgain = _rank_two((1 / s, ones), (dfirst / sd - a * grown, dsecond / sd - b * grown))
    dgain = s[:, None] * (dgain + outer(dr / s, b))
    gain = a[None] + r[:, None] * b[None]
    dbias = _rank_two((ones, r), (dbias - first * moved, -second * moved))
    return scaled(*primals), gain * d.x + dgain * (rows.x - rows.mean[None]) + dbias


@jax.custom_jvp
def divided(
    rows: Rows,
    norm: Float[Array, " n"],
    alpha: Float[Array, " c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
) -> Float[Array, "n c"]:
    """scale x̂ / (alpha norm + 1 − alpha) + bias, of vectors less a shift, of positive norm."""
    divisor = _divisor(norm, alpha)
    return (scale / jnp.sqrt(rows.var))[None] * centred(rows) / divisor + bias[None]


@divided.defjvp
def _(primals: tuple[Rows, *tuple[Array, ...]], tangents: tuple[Rows, *tuple[Array, ...]]):
    rows, norm, alpha, scale, _ = primals
    d, dnorm, dalpha, dscale, dbias = tangents
    assert d.less is not None  # vectors are less a shift
    sd, ones = jnp.sqrt(rows.var), jnp.ones_like(norm)
    a, da = scale / sd, (dscale - scale * (d.grown / 2)) / sd
    divisor = _divisor(norm, alpha)
    # Everything over the divisor's square, that of the scale too: all sums are then of one array,
    # x̂ times what comes back over that square.
    dgain = _rank_two((norm, ones), (alpha * da - a * dalpha, (1 - alpha) * da + a * dalpha))
    dgain = dgain + outer(dnorm, -a * alpha)
    dx = a[None] * (d.x + d.less) + dgain * centred(rows) / divisor
    return divided(*primals), dx / divisor + outer(ones, dbias)


def _divisor(norm: Float[Array, " n"], alpha: Float[Array, " c"]) -> Float[Array, "n c"]:
    """alpha norm + 1 − alpha, and where that is zero, which needs alpha outside [0, 1], next to it.

    XLA would not join a case for zero with what follows.
    """
    return norm[:, None] * alpha[None] + (1 - alpha)[None] + jnp.finfo(norm.dtype).eps ** 2


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
