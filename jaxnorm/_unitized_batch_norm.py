"""Unitized batch normalization: Algorithms 1 and 2 of Huang and Yu, with Eq. 10 or Eq. 9.

Shapes, dtypes, training and inference are those of `batch_norm`. For images the gain and offset
belong to a channel and sample, and follow from the sums of each channel over each sample.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import Correction, Place, by_group, check_shapes, place_of
from jaxnorm._statistics import (
    AxisName,
    BatchStatistics,
    Shards,
    channels,
    fenced,
    sample_mask,
    widen,
)
from jaxnorm._unitized_rows import (
    Rows,
    centred,
    divided,
    divisor,
    inverse_root,
    norms_of,
    outer,
    product,
    rows_of,
    scaled,
)

Factor = Callable[[Array, Array], Array]

# Numbers that are added side by side where few channels would be slow, of at most so many pixels.
_LANES, _PIXELS = 1024, 16


def unitized_batch_norm(
    x: Float[Array, "n *spatial c"],
    alpha: Float[Array, " c"],
    scale: Float[Array, " c"] | None = None,
    bias: Float[Array, " c"] | None = None,
    statistics: BatchStatistics | None = None,
    *,
    eps: float = 1e-5,
    pixels: int | float | None = None,
    per_pixel: bool = False,
    factor: Factor | None = None,
    correction: Correction | None = None,
    groups: int = 1,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
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

    Sums are taken about a sample of the batch, so that a large mean costs no digits. Those of
    vectors of 256 or more channels are not, for speed: their mean in float32 is right to 5 · 10⁻⁷
    of its size, and x̂ is off by what it is off over the standard deviation.

    By default the factor of x̂ is that of Eq. 10, which Theorems 3.1 to 3.3 do not cover: see
    `unitize`. With `factor=bounded` it is that of Eq. 9, which they do cover: for alpha in (0, 1]
    and eps 0 every sample's x̄ has a norm of at most √(pixels · P) / min(alpha). Outside [0, 1] it
    has poles, next to which outputs are large, and at which they are finite.

    Args:
      x: Samples first, channels last.
      alpha: 0 is batch norm, 1 the direction alone; the paper leaves it free and starts at 0.
      scale: γ, by default 1.
      bias: β, by default 0.
      statistics: Given in inference; in training those of `x` are taken.
      eps: Added to the variance and to s.
      pixels: Line 9's constant n; with `per_pixel` 1 by default.
      per_pixel: Divide each pixel by the norm of its own channels, Figure 1(b), not Figure 1(c):
        s = Σ x̂² / pixels over the channels of one pixel.
      factor: What multiplies x̂, as a function of alpha and s + eps: `interpolated` (default) or
        `bounded`; a function of its own that first clips alpha, or passes it through a sigmoid,
        keeps it in [0, 1].
      correction: As in `batch_norm`; the paper's code has `partial(bessel, eps=1e-3)`.
      groups: As in `batch_norm`.
      where: Samples (or pixels) that count, as in `batch_statistics`; others are left out of s
        and of its count P.
      axis_name: Mapped axes over which the batch is spread; every sample lies on one of them.
      axis_index_groups: As in `batch_statistics`.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: `pixels` is not positive, a shape does not fit, or `groups` does not divide the
        batch.

    Example:
      >>> x = jnp.array([[3.0, 0.0], [0.0, 4.0], [-3.0, -4.0]])
      >>> y, _ = unitized_batch_norm(x, jnp.ones(2), eps=0.0)
      >>> print(jnp.linalg.norm(y, axis=1).round(6))
      [1. 1. 1.]
    """
    if pixels is not None and not pixels > 0:
        raise ValueError(f"pixels must be positive; got {pixels}")
    check_shapes(x, {"alpha": alpha, "scale": scale, "bias": bias}, statistics)
    if groups != 1 and statistics is None:
        normalize = partial(
            unitized_batch_norm,
            eps=eps,
            pixels=pixels,
            per_pixel=per_pixel,
            factor=factor,
            correction=correction,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
        )
        return by_group(
            lambda x, keep: normalize(x, alpha, scale, bias, where=keep), x, where, groups
        )
    keep = None if where is None else sample_mask(x, where)
    shards = Shards(axis_name, axis_index_groups)
    dtype = widen(x).dtype
    ones = jnp.ones(x.shape[-1], dtype)
    affine = _Affine(
        alpha.astype(dtype),
        ones if scale is None else scale.astype(dtype),
        0 * ones if bias is None else bias.astype(dtype),
        None if factor is interpolated else factor,
        # Without a case for zero where eps leaves none: XLA joins no kernels across cases.
        positive=eps >= float(jnp.finfo(dtype).tiny),
    )
    if per_pixel or x.ndim == 2:
        rows = x.reshape(-1, x.shape[-1])
        keep = None if keep is None else keep.reshape(-1)
        place, stats = rows_of(widen(rows), keep, statistics, shards, correction, eps)
        y = _unitized_rows(place, affine, eps, 1 if pixels is None else pixels)
    else:
        area = math.prod(x.shape[1:-1])
        place = place_of(x, keep, statistics, shards, correction)
        square = _mean_square(x, keep, place, eps) / (area if pixels is None else pixels)
        y, stats = _unitized_samples(place, affine, eps, square + eps), place.statistics
    return y.reshape(x.shape).astype(x.dtype), stats


def interpolated(
    alpha: Float[Array, "*#shape"], square: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """alpha / √square + 1 − alpha: what Eq. 10 multiplies a vector of that squared norm by.

    A squared norm of zero gives 1 with a zero gradient: the vector is zero whatever its factor.

    Example:
      >>> print(interpolated(jnp.array([0.0, 0.5, 1.0]), jnp.array([16.0])))
      [1.    0.625 0.25 ]
    """
    return alpha * inverse_root(square) + (1 - alpha)


def bounded(
    alpha: Float[Array, "*#shape"], square: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """1 / (alpha √square + 1 − alpha): what Eq. 9 multiplies a vector of that squared norm by.

    For alpha in [0, 1] its product with the norm stays below 1/alpha. Where the divisor is zero,
    at alpha 1 and a zero vector, the factor is 1: the vector is zero whatever its factor.

    Example:
      >>> print(bounded(jnp.array([0.0, 0.5, 1.0]), jnp.array([16.0])))
      [1.   0.4  0.25]
    """
    positive = square > 0
    norm = jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)
    below = alpha * norm + (1 - alpha)
    # The last case, which decides nothing, keeps XLA from dividing anew for every pixel.
    return jnp.where(below == 0, 1, 1 / jnp.where(below == 0, 1, below))


class _Affine(NamedTuple):
    """What becomes of x̂: parameters, one number per channel, and the factor that alpha decides.

    The factor is of s + eps, which is zero for no sample if `positive`.
    """

    alpha: Float[Array, " c"]
    scale: Float[Array, " c"]
    bias: Float[Array, " c"]
    factor: Factor | None  # none for Eq. 10
    positive: bool

    def inverse_root(self, square: Array) -> Array:
        return jax.lax.rsqrt(square) if self.positive else inverse_root(square)


def _unitized_samples(
    place: Place, affine: _Affine, eps: float, square: Float[Array, "n #c"]
) -> Float[Array, "n *spatial c"]:
    """Algorithm 2, from line 9's s + eps of every sample: one gain and offset a channel of it."""
    alpha, scale = affine.alpha, affine.scale * jax.lax.rsqrt(place.var + eps)
    if affine.factor is None:
        gain = (alpha * scale)[None] * affine.inverse_root(square) + ((1 - alpha) * scale)[None]
    elif affine.factor is bounded and affine.positive and square.shape[1] > 1:
        # At the end of a network (norms of every channel) XLA joins nothing where it finds cases.
        gain = 1 / divisor(alpha[None], jnp.sqrt(square)) * scale[None]
    else:
        gain = affine.factor(alpha[None], square) * scale[None]
    offset = affine.bias[None] - gain * place.mean[None]
    wide = (len(gain), *(1 for _ in place.h.shape[1:-1]), len(scale))
    return fenced(gain).reshape(wide) * place.h + fenced(offset).reshape(wide)


def _mean_square(x: Array, keep: Array | None, place: Place, eps: float) -> Float[Array, "n #c"]:
    """Σ x̂² / P of every sample, in one column or the same in every channel's."""
    var = place.var + eps
    if place.by_sample is None and keep is None and _ends_a_network(x):
        return _mean_square_by_channel(x, place.shift, 1 / var)
    if place.by_sample is None:
        square, count = _square_by_sample(x, keep, place.shift, 1 / var)
    else:
        first, second, count = place.by_sample
        m = place.mean[None]
        about_mean = jnp.maximum(second - 2 * m * first + count[:, None] * jnp.square(m), 0)
        square = jnp.sum(about_mean / var[None], 1)
    return (square / jnp.maximum(count, 1))[:, None]


def _ends_a_network(x: Float[Array, "n *spatial c"]) -> bool:
    """Whether `x` is of the size that the last layers of networks for small images have.

    XLA's CPU back end joins the last hundred operations of a network in one kernel, in which
    convolutions can be twice as fast; and norms with them if they are matrices of 4096 or more
    numbers. For layers of other sizes, norms for every channel would cost more than that gains.
    """
    n, *spatial, c = x.shape
    area = math.prod(spatial)
    return n * c >= 4096 and area <= 2 * c <= 2 * area <= 128


def _mean_square_by_channel(
    x: Float[Array, "n *spatial c"], mean: Float[Array, " c"], weights: Float[Array, " c"]
) -> Float[Array, "n c"]:
    """Weighted Σ (x − μ)² / P of every sample, the same in every column."""
    spatial = tuple(range(1, x.ndim - 1))
    sums = jnp.square(widen(x) - channels(fenced(mean), x)).sum(spatial)
    weights = weights / math.prod(x.shape[1:-1])
    return product(sums, jnp.broadcast_to(weights[:, None], (len(weights), len(weights))))


def _square_by_sample(
    x: Array, keep: Array | None, mean: Float[Array, " c"], weights: Float[Array, " c"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Weighted Σ (x − μ)² over channels and kept pixels of every sample, and how many are kept.

    Some pixels stand beside their channels until the end: XLA's CPU back end adds hundreds of
    numbers side by side up to three times as fast as the few of a layer's channels.
    """
    n, *spatial, c = x.shape
    area = math.prod(spatial)
    fitting = (k for k in range(1, _PIXELS + 1) if area % k == 0 and k * c <= max(_LANES, c))
    side = max(fitting, default=1)
    # Another fence, or XLA would keep the differences for the result: a pass more.
    h = widen(x).reshape(n, area // side, side * c) - jnp.tile(fenced(mean), side)[None, None]
    count = jnp.full(n, area, h.dtype)
    if keep is not None:
        count = keep.reshape(n, area).sum(1).astype(h.dtype)
        h = jnp.where(jnp.repeat(keep.reshape(n, area // side, side), c, 2), h, 0)
    return product(fenced(jnp.square(h).sum(1)), jnp.tile(weights, side)), count


def _unitized_rows(
    rows: Rows, affine: _Affine, eps: float, pixels: int | float
) -> Float[Array, "n c"]:
    """Algorithm 1, from where its vectors lie."""
    alpha, scale, bias, factor, positive = affine
    square = norms_of(rows) / pixels + eps
    if factor is None:
        r = affine.inverse_root(square)
        return scaled(rows, r, scale * (1 - alpha), scale * alpha, bias)
    if factor is bounded and positive:
        norm = jnp.sqrt(jnp.minimum(square, jnp.finfo(square.dtype).max))
        return divided(rows, norm, alpha, scale, bias)
    gain = factor(alpha[None], square[:, None]) * (scale / jnp.sqrt(rows.var))[None]
    return gain * centred(rows) + outer(jnp.ones(len(rows.x), square.dtype), bias)
