"""Batch statistics that merge exactly, and the moments of a batch.

Samples lie on the leading axes, features on the last. Everything is summed in at least float32.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Axes = int | Sequence[int]


class BatchStatistics(NamedTuple):
    """Mean and biased variance of `count` samples, one of each per feature.

    No samples at all are (0, 0, 0), which `merge_statistics` leaves out.
    """

    mean: Float[Array, " c"]
    var: Float[Array, " c"]
    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]


class Moments(NamedTuple):
    """Population moments: skewness m₃/m₂^1.5 and kurtosis m₄/m₂², which is 3 for a Gaussian."""

    mean: Float[Array, "*features"]
    var: Float[Array, "*features"]
    skewness: Float[Array, "*features"]
    kurtosis: Float[Array, "*features"]


def widen(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` in at least float32, the precision in which statistics are summed."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be of a floating dtype; got {x.dtype}")
    return x.astype(np.promote_types(x.dtype, np.float32))


def centre(x: Float[Array, "*shape"], axis: Axes) -> Float[Array, "*shape"]:
    """`x` less its mean along `axis`, exactly zero where `x` is constant.

    The first entry is taken off before the mean is formed: a constant then has no rounding left,
    and a large mean costs no digits. The gradient is that of x − mean(x).
    """
    axes = axis_tuple(x, axis)
    first = x[tuple(slice(0, 1) if i in axes else slice(None) for i in range(x.ndim))]
    h = x - jax.lax.stop_gradient(first)
    return h - h.mean(axes, keepdims=True)


def axis_tuple(x: Array, axis: Axes) -> tuple[int, ...]:
    """The axes of `x` named by `axis`, counted from the front; they must hold samples."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    if not all(-x.ndim <= i < x.ndim for i in given) or not given:
        raise ValueError(f"axis must name axes of an array of shape {x.shape}; got {axis}")
    axes = tuple(i % x.ndim for i in given)
    if any(x.shape[i] == 0 for i in axes):
        raise ValueError(f"axis must hold at least one sample; got shape {x.shape}, axis {axis}")
    return axes


def batch_statistics(
    x: Float[Array, "*batch c"],
    *,
    where: Bool[Array, "..."] | None = None,
    axis_name: Hashable | tuple[Hashable, ...] | None = None,
) -> BatchStatistics:
    """Mean and biased variance of each feature over all axes but the last.

    One pass over the data, shifted by a sample of it, so that a mean of 10⁴ at standard deviation
    1 keeps six digits of the variance in float32. The result is in at least float32, whatever the
    dtype of `x`.

    Args:
      x: Samples on the leading axes, features on the last.
      where: Which samples count: of the shape of the leading axes, or broadcastable to `x` with a
        last axis of 1. What `x` holds elsewhere, NaN included, has no influence.
      axis_name: Mapped axis or axes (vmap, shard_map) over which the samples are spread. Shards
        are weighted by their counts: the result is that of the union, and an empty shard adds
        nothing.

    Raises:
      ValueError: `x` has no features or no leading axis, or `where` has another shape.

    Example:
      >>> stats = batch_statistics(jnp.array([[1.0, 5.0], [3.0, 5.0]]))
      >>> print(stats.mean, stats.var, stats.count)
      [2. 5.] [1. 0.] 2.0
    """
    if x.ndim < 2 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (samples, ..., features); got {x.shape}")
    rows = widen(x).reshape(-1, x.shape[-1])
    stats = _plain(rows) if where is None else _masked(rows, sample_mask(x, where).reshape(-1))
    return stats if axis_name is None else _over_shards(stats, axis_name)


def sample_mask(x: Array, where: Array) -> Bool[Array, "*batch"]:
    """`where` as one boolean for every sample, that is every entry of `x` but its last axis."""
    samples = where[..., 0] if where.ndim == x.ndim and where.shape[-1] == 1 else where
    if samples.ndim != x.ndim - 1 or any(
        m not in (1, n) for m, n in zip(samples.shape, x.shape[:-1], strict=True)
    ):
        raise ValueError(
            f"where must broadcast to the samples of x, shape {x.shape[:-1]}, or have a last axis "
            f"of 1 more; got {where.shape}"
        )
    return jnp.broadcast_to(samples, x.shape[:-1])


def _plain(rows: Float[Array, "n c"]) -> BatchStatistics:
    n = len(rows)
    if n == 0:
        empty = jnp.zeros(rows.shape[1], rows.dtype)
        return BatchStatistics(empty, empty, jnp.zeros((), rows.dtype))
    shift = jax.lax.stop_gradient(rows[:1])
    h = rows - shift
    mean = h.mean(0)
    var = jnp.maximum(jnp.square(h).mean(0) - jnp.square(mean), 0)
    return BatchStatistics(shift[0] + mean, var, jnp.full((), n, rows.dtype))


def _masked(rows: Float[Array, "n c"], keep: Bool[Array, " n"]) -> BatchStatistics:
    if len(rows) == 0:
        return _plain(rows)
    first = jax.lax.stop_gradient(rows[jnp.argmax(keep)])
    count = keep.sum().astype(rows.dtype)
    shift = jnp.where(count > 0, first, 0)
    h = jnp.where(keep[:, None], rows - shift[None], 0)
    divisor = jnp.maximum(count, 1)
    mean = h.sum(0) / divisor
    var = jnp.maximum(jnp.square(h).sum(0) / divisor - jnp.square(mean), 0)
    return BatchStatistics(shift + mean, var, count)


def _over_shards(local: BatchStatistics, axis_name: Hashable) -> BatchStatistics:
    count = jax.lax.psum(local.count, axis_name)
    weight = local.count / jnp.maximum(count, 1)
    # Shards are averaged about one of their own means, so that the sum keeps its digits.
    own = jax.lax.stop_gradient(jnp.where(local.count > 0, local.mean, -jnp.inf))
    anchor = jnp.where(count > 0, jax.lax.pmax(own, axis_name), 0)
    offset = jnp.where(local.count > 0, local.mean - anchor, 0)
    mean = jax.lax.psum(weight * offset, axis_name)
    var = jax.lax.psum(weight * (local.var + jnp.square(offset - mean)), axis_name)
    return BatchStatistics(anchor + mean, var, count)


def merge_statistics(a: BatchStatistics, b: BatchStatistics) -> BatchStatistics:
    """Statistics of the union of two sets of samples, Chan, Golub and LeVeque (1979).

    An empty set (count 0) leaves the other unchanged; two empty sets give an empty one.

    Example:
      >>> x = jnp.array([[1.0], [2.0], [6.0]])
      >>> merged = merge_statistics(batch_statistics(x[:1]), batch_statistics(x[1:]))
      >>> print(merged.mean, merged.count)
      [3.] 3.0
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    delta = b.mean - a.mean
    var = (1 - share) * a.var + share * b.var + share * (1 - share) * jnp.square(delta)
    return BatchStatistics(
        jnp.where(a.count > 0, a.mean + share * delta, b.mean),
        jnp.where(a.count > 0, var, b.var),
        count,
    )


def moments(x: Float[Array, "*shape"], *, axis: Axes = 0) -> Moments:
    """Mean, variance, skewness and kurtosis of `x` along `axis`, all of the population.

    The moments that Figure 2 of the unitization paper follows through training. Computed from
    centred data in at least float32. A constant has variance 0 and neither skewness nor kurtosis:
    both are NaN.

    Raises:
      ValueError: `axis` is none of `x`, or holds no sample.

    Example:
      >>> print(moments(jnp.array([-3.0, 0.0, 0.0, 3.0])).kurtosis)
      2.0
    """
    h = widen(x)
    axes = axis_tuple(h, axis)
    centred = centre(h, axes)
    m2, m3, m4 = (jnp.mean(centred**power, axes) for power in (2, 3, 4))
    positive = m2 > 0
    safe = jnp.where(positive, m2, 1)
    return Moments(
        h.mean(axes),
        m2,
        jnp.where(positive, m3 / safe**1.5, math.nan),
        jnp.where(positive, m4 / safe**2, math.nan),
    )
