"""Unitized batch norm of vectors, Algorithm 1 of Huang and Yu, with rules of differentiation.

A sum over a vector is here as large a task as the result, and XLA's CPU back end takes less time
for a product with a vector of ones than for a sum, unless what is summed is there already, as what
comes back to the bias is. The rules are exact and can be differentiated
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

# Channels from which on vectors are wide and summed as they came, which rounds their mean to 4 eps
# of its dtype: to take a sample off them first is a pass over the data.
_WIDE = 256


class Rows(NamedTuple):
    """Vectors, what centres them, and their variance with eps.

    The mean is there negated and once for every vector. What comes back through it is then an array
    of the data's size, in which the variance's part is added before it is summed: so it waits for
    the squares, whose place it takes, and the last loop only adds a row to it.

    `grown` are zeros that change as the variance does, divided by it. The rules read its changes
    there: what comes back ends in one division, and the loop that adds it reads one vector for it.
    """

    x: Float[Array, "n c"]
    less: Float[Array, "n c"]
    var: Float[Array, " c"]
    grown: Float[Array, " c"]


def rows_of(
    x: Float[Array, "n c"],
    keep: Bool[Array, " n"] | None,
    statistics: BatchStatistics | None,
    shards: Shards,
    correction: Correction | None,
    eps: float,
) -> tuple[Rows, BatchStatistics]:
    """Where vectors in at least float32 lie, by their own statistics or by the given ones."""
    ones = jnp.ones(len(x), x.dtype)
    if statistics is not None:
        mean, var, _ = stats = given(statistics, x)
        return _rows(x, outer(ones, -mean), var + eps), stats
    less_sample, sample = shifted(x, keep, shards)
    wide = x.shape[1] >= _WIDE
    h = x if wide else less_sample
    counted = h if keep is None else jnp.where(keep[:, None], h, 0)
    weights = ones if keep is None else keep.astype(x.dtype)
    count = shards.total(weights.sum())
    share = weights / jnp.maximum(count, 1)
    if wide:
        whole = mean = _mean(shards.total(counted.sum(0)), jnp.maximum(count, 1), sample)
    else:
        mean = shards.total(product(share, counted))
        whole = sample + mean
    less = outer(ones, -mean)
    var = shards.total(product(share, jnp.square(counted + less)))
    corrected = var if correction is None else var * correction(count)
    return _rows(h, less, corrected + eps), BatchStatistics(whole, var, count)


def _rows(x: Array, less: Array, var: Array) -> Rows:
    return Rows(x, less, var, _growth(var))


@jax.custom_jvp
def _growth(var: Float[Array, " c"]) -> Float[Array, " c"]:
    """Zeros that change as the variance does, divided by it."""
    return jnp.zeros_like(var)


@_growth.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]):
    return _growth(*primals), tangents[0] / primals[0]


@jax.custom_jvp
def _mean(
    total: Float[Array, " c"], count: Float[Array, ""], sample: Float[Array, " c"]
) -> Float[Array, " c"]:
    """total / count, or the sample where they differ by no more than a sum rounds.

    The mean of constants is then exact. Only the total varies.
    """
    rounding = 4 * jnp.finfo(total.dtype).eps * jnp.abs(sample)
    constant = jnp.abs(total / count - sample) <= rounding
    return jnp.where(constant, sample, total) / jnp.where(constant, 1, count)


@_mean.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    return _mean(*primals), tangents[0] / primals[1]


def centred(rows: Rows) -> Float[Array, "n c"]:
    return rows.x + rows.less


@jax.custom_jvp
def norms_of(rows: Rows) -> Float[Array, " n"]:
    """‖x̂‖² of every vector."""
    return product(jnp.square(centred(rows)), 1 / rows.var)


@norms_of.defjvp
def _(primals: tuple[Rows], tangents: tuple[Rows]):
    (rows,), (d,) = primals, tangents
    h, var = centred(rows), rows.var
    by_vector = 2 * product(h * (d.x + d.less), 1 / var)
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
    return gain * centred(rows) + bias[None]


@scaled.defjvp
def _(primals: tuple[Rows, *tuple[Array, ...]], tangents: tuple[Rows, *tuple[Array, ...]]):
    rows, r, first, second, _ = primals
    d, dr, dfirst, dsecond, dbias = tangents
    sd, ones = jnp.sqrt(rows.var), jnp.ones_like(r)
    a, b, grown = first / sd, second / sd, d.grown / 2
    # Divided by r here and multiplied by it below: on the way back the product with x̂ then waits
    # until the squares are done with, whose place it takes.
    s = jnp.maximum(r, jnp.finfo(r.dtype).tiny)
    dgain = _rank_two((1 / s, ones), (dfirst / sd - a * grown, dsecond / sd - b * grown))
    dgain = s[:, None] * (dgain + outer(dr / s, b))
    gain = a[None] + r[:, None] * b[None]
    dx = gain * (d.x + d.less) + dgain * centred(rows)
    return scaled(*primals), dx + dbias[None]


@jax.custom_jvp
def divided(
    rows: Rows,
    norm: Float[Array, " n"],
    alpha: Float[Array, " c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
) -> Float[Array, "n c"]:
    """scale x̂ / (alpha norm + 1 − alpha) + bias, for positive norms."""
    below = divisor(alpha[None], norm[:, None])
    return (scale / jnp.sqrt(rows.var))[None] * centred(rows) / below + bias[None]


@divided.defjvp
def _(primals: tuple[Rows, *tuple[Array, ...]], tangents: tuple[Rows, *tuple[Array, ...]]):
    rows, norm, alpha, scale, _ = primals
    d, dnorm, dalpha, dscale, dbias = tangents
    sd, ones = jnp.sqrt(rows.var), jnp.ones_like(norm)
    a, da = scale / sd, (dscale - scale * (d.grown / 2)) / sd
    below = divisor(alpha[None], norm[:, None])
    # Everything over the divisor's square, that of the scale too, as its 1 / divisor is
    # (alpha norm + 1 − alpha) / divisor². So all sums are of one array, x̂ times what comes back
    # over that square.
    dgain = _rank_two((norm, ones), (alpha * da - a * dalpha, (1 - alpha) * da + a * dalpha))
    dgain = dgain + outer(dnorm, -a * alpha)
    dx = a[None] * (d.x + d.less) + dgain * centred(rows) / below
    return divided(*primals), dx / below + dbias[None]


def divisor(
    alpha: Float[Array, "*#shape"], norm: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """alpha norm + 1 − alpha, and where that is zero, which needs alpha outside [0, 1], next to it.

    XLA would not join a case for zero with what follows.
    """
    return alpha * norm + (1 - alpha) + jnp.finfo(norm.dtype).eps ** 2


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
