"""Batch normalization and unitized batch normalization, in training and in inference.

Inputs are (n, c) or (n, ..., c): samples first, any number of spatial axes, channels last. Without
`statistics` the batch is normalized by its own (training), with them by the given ones
(inference). Both functions return the result, in the dtype of `x`, and the statistics that were
used, in at least float32. Sums, norms and scales are in at least float32 in both modes.
"""

import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._statistics import BatchStatistics, batch_statistics, sample_mask, widen

AxisName = Hashable | tuple[Hashable, ...]


def batch_norm(
    x: Float[Array, "n *spatial c"],
    scale: Float[Array, " c"] | None = None,
    bias: Float[Array, " c"] | None = None,
    statistics: BatchStatistics | None = None,
    *,
    eps: float = 1e-5,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
    """scale (x − μ) / √(σ² + eps) + bias, Ioffe and Szegedy (2015), with the biased variance σ².

    A constant channel becomes `bias`; a batch without any counted sample is normalized by mean 0
    and variance 0, without NaN.

    Args:
      x: Samples first, channels last.
      scale: γ, by default 1.
      bias: β, by default 0.
      statistics: Given in inference; in training those of `x` are taken.
      eps: Added to the variance.
      where: Samples that count in the statistics, as in `batch_statistics`. All are normalized.
      axis_name: Mapped axes over which the batch is spread, as in `batch_statistics`.

    Example:
      >>> y, statistics = batch_norm(jnp.array([[1.0], [3.0]]), eps=0.0)
      >>> print(y.ravel(), statistics.mean)
      [-1.  1.] [2.]
    """
    h = widen(x)
    stats = _statistics(h, statistics, where, axis_name)
    gain = jax.lax.rsqrt(stats.var + eps) * _or_one(scale, h)
    y = (h - _channels(stats.mean, h)) * _channels(gain, h)
    return _add(y, bias).astype(x.dtype), stats


def unitized_batch_norm(
    x: Float[Array, "n *spatial c"],
    alpha: Float[Array, " c"],
    scale: Float[Array, " c"] | None = None,
    bias: Float[Array, " c"] | None = None,
    statistics: BatchStatistics | None = None,
    *,
    eps: float = 1e-5,
    pixels: int | float | None = None,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
    """Batch norm, then each sample moved towards its direction: Huang and Yu, Algorithms 1 and 2.

    With x̂ the normalized input, P its pixels per sample and s = Σ x̂² / (pixels · P) over pixels
    and channels of one sample, the result is scale (alpha / √(s + eps) + 1 − alpha) x̂ + bias.
    Vectors, (n, c), have one pixel: s = ‖x̂‖² (Algorithm 1). With alpha 0 this is batch norm. The
    norm belongs to the sample, in inference too, so that the layer cannot be folded into others.

    By default `pixels` is the number of pixels of `x`, line 9 of Algorithm 2. The mean of s is
    then c/P: with alpha 1 every sample gets the norm P, not 1, and unitization enlarges outputs
    where there are more pixels than channels. `pixels` equal to the number of channels leaves
    their scale alone. In inference on images of another size, give the value used in training.

    The norm is that of Eq. 10, which Theorems 3.1 to 3.3 do not cover: see `unitize`.

    Args:
      x: Samples first, channels last.
      alpha: 0 is batch norm, 1 the direction alone; the paper leaves it free and starts at 0.
      scale: γ, by default 1.
      bias: β, by default 0.
      statistics: Given in inference; in training those of `x` are taken.
      eps: Added to the variance and to s.
      pixels: Line 9's constant n.
      where: Samples (or pixels) that count, as in `batch_statistics`; others are left out of s
        and of its count P.
      axis_name: Mapped axes over which the batch is spread; every sample lies on one of them.

    Raises:
      ValueError: `pixels` is not positive.

    Example:
      >>> x = jnp.array([[3.0, 0.0], [0.0, 4.0], [-3.0, -4.0]])
      >>> y, _ = unitized_batch_norm(x, jnp.ones(2), eps=0.0)
      >>> print(jnp.linalg.norm(y, axis=1).round(6))
      [1. 1. 1.]
    """
    if pixels is not None and not pixels > 0:
        raise ValueError(f"pixels must be positive; got {pixels}")
    h = widen(x)
    stats = _statistics(h, statistics, where, axis_name)
    h = h - _channels(stats.mean, h)
    inverse = jax.lax.rsqrt(stats.var + eps)
    norm = jax.lax.rsqrt(_mean_square(h, inverse, pixels, where) + eps)
    towards = 1 + alpha.astype(h.dtype)[None] * (norm[:, None] - 1)
    gain = towards * (inverse * _or_one(scale, h))[None]
    y = h * gain.reshape(len(h), *[1] * (h.ndim - 2), -1)
    return _add(y, bias).astype(x.dtype), stats


def _statistics(
    x: Array, given: BatchStatistics | None, where: Array | None, axis_name: AxisName | None
) -> BatchStatistics:
    if given is None:
        return batch_statistics(x, where=where, axis_name=axis_name)
    return BatchStatistics(*(part.astype(x.dtype) for part in given))


def _mean_square(
    h: Float[Array, "n *spatial c"],
    inverse: Float[Array, " c"],
    pixels: int | float | None,
    where: Array | None,
) -> Float[Array, " n"]:
    """s of line 9: Σ x̂² / (pixels · P), from per-sample sums of each channel."""
    area = counted = math.prod(h.shape[1:-1])
    spatial = tuple(range(1, h.ndim - 1))
    if where is not None:
        keep = sample_mask(h, where)
        h = jnp.where(keep[..., None], h, 0)
        counted = jnp.maximum(keep.sum(spatial), 1).astype(h.dtype)
    squares = jnp.square(h).sum(spatial)
    total = jnp.einsum("nc,c->n", squares, jnp.square(inverse), precision="highest")
    return total / ((area if pixels is None else pixels) * counted)


def _or_one(scale: Array | None, like: Array) -> Array:
    return jnp.ones(like.shape[-1], like.dtype) if scale is None else scale.astype(like.dtype)


def _add(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + _channels(bias.astype(y.dtype), y)


def _channels(parameter: Float[Array, " c"], x: Array) -> Array:
    """`parameter` shaped to act along the last axis of `x`."""
    return parameter.reshape([1] * (x.ndim - 1) + [-1])
