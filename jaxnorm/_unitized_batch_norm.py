"""Unitized batch normalization by Algorithms 1 and 2 of Huang and Yu, with Equation 10 or 9.

Shapes, dtypes, training and inference are the same as for `batch_norm`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnorm._batch_norm import PerChannel, by_group, own_or_given, per_channel
from jaxnorm._statistics import (
    AxisName,
    BatchStatistics,
    Correction,
    Keep,
    Number,
    Reduction,
    Shifted,
    channels,
    check_features,
    sums_by_sample,
)
from jaxnorm.internal import (
    check_eps,
    check_flags,
    check_function,
    check_number,
    check_positive,
    floating,
    inverse_root,
)

Factor = Callable[[Array, Array], Array]


def interpolated(
    alpha: Number | Float[Array, "*#shape"], square: Number | Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """The factor of Equation 10 for a vector of squared norm `square`: alpha / √square + 1 − alpha.

    If the squared norm is zero, the factor is 1 and its gradient is zero.

    Example:
      >>> print(interpolated(jnp.array([0.0, 0.5, 1.0]), jnp.array([16.0])))
      [1.    0.625 0.25 ]
    """
    check_number(alpha, "alpha")
    square = floating(square, "square")
    return alpha * inverse_root(square) + (1 - alpha)


def bounded(
    alpha: Number | Float[Array, "*#shape"], square: Number | Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """The factor of Equation 9 for a squared norm `square`: 1 / (alpha √square + 1 − alpha).

    For alpha in (0, 1], the factor times the norm is at most 1/alpha. If the divisor is zero, the
    factor is 1, for example at alpha = 1 for the zero vector.

    Example:
      >>> print(bounded(jnp.array([0.0, 0.5, 1.0]), jnp.array([16.0])))
      [1.   0.4  0.25]
    """
    check_number(alpha, "alpha")
    square = floating(square, "square")
    zero = square <= 0  # the comparison is false for NaN, so NaN remains NaN
    finite = jnp.minimum(square, jnp.finfo(square.dtype).max)
    norm = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, finite)))
    divisor = alpha * norm + (1 - alpha)
    return jnp.where(divisor == 0, 1, 1 / jnp.where(divisor == 0, 1, divisor))


def unitized_batch_norm(
    x: Float[Array, "n *spatial c"],
    alpha: PerChannel,
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
    statistics: BatchStatistics | None = None,
    *,
    eps: float = 1e-5,
    pixels: int | float | None = None,
    per_pixel: bool = False,
    factor: Factor = interpolated,
    correction: Correction | None = None,
    groups: int = 1,
    where: Bool[Array, "..."] | None = None,
    axis_name: AxisName | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
    """Batch norm, then unitization of each sample: Huang and Yu, Algorithms 1 and 2.

    Let x̂ be the normalized input, P the number of pixels per sample, and s = Σ x̂² / (pixels · P),
    summed over pixels and channels of one sample. The result is scale (alpha / √(s + eps) + 1 −
    alpha) x̂ + bias. An input of shape (n, c) has one pixel per sample, so s = ‖x̂‖² (Algorithm 1).
    If alpha is 0, the layer is batch norm. In inference too, each sample is divided by its own
    norm, so the layer cannot be folded into other layers.

    By default `pixels` is the number P of pixels of `x`, as in line 9 of Algorithm 2, so the mean
    of s is c/P for c channels. With alpha 1, every sample gets the norm P, not 1, so unitization
    enlarges outputs if there are more pixels than channels. If `pixels` is the number of channels,
    unitization does not change the scale of the outputs. For inference on images of a different
    size than in training, set `pixels` to the number of pixels of the training images. If Σ (x −
    μ)² exceeds the largest float, 3·10³⁸, the result is NaN.

    By default, x̂ is multiplied by the factor of Equation 10, which Theorems 3.1 to 3.3 do not
    cover (see `unitize`). `factor=bounded` uses Equation 9, which the theorems cover. With
    `bounded`, alpha in (0, 1] and eps 0, the norm of every unitized sample is at most √(pixels · P)
    / min(alpha). For alpha outside [0, 1], the factor of Equation 9 has a pole, and outputs are
    large near the pole.

    Args:
      x: The batch, with samples on the first axis and channels on the last axis.
      alpha: The strength of unitization: 0 gives batch norm, and 1 keeps only the direction of each
        sample. The paper trains alpha without bounds, from 0.
      scale: The factor γ, one number or one number per channel, by default 1.
      bias: The summand β, one number or one number per channel, by default 0.
      statistics: The statistics to use in inference. In training, leave `statistics` out: the
        statistics of `x` are used.
      eps: The number added to the variance and to the mean square s of a sample.
      pixels: The constant n in line 9 of Algorithm 2; the default is P, or 1 with `per_pixel`.
      per_pixel: Whether each pixel is divided by the norm of its own channels, as in Figure 1(b).
        By default, each pixel is divided by the norm of the image, as in Figure 1(c). With
        `per_pixel`, s = Σ x̂² / pixels, summed over the channels of one pixel.
      factor: A function of alpha and s + eps whose result multiplies x̂: `interpolated` (default)
        or `bounded`. To keep alpha in [0, 1], pass a function that first clips alpha or applies a
        sigmoid.
      correction: A function that returns a factor of the variance, as in `batch_norm`; the paper's
        code uses `partial(bessel, eps=1e-3)`.
      groups: The number of ghost batches, as in `batch_norm`.
      where: A mask of the samples or pixels that enter the statistics, as in `batch_statistics`.
        Pixels outside the mask do not count in s and P of their sample, but count in the default of
        `pixels`. A sample without chosen pixels does not enter the statistics, but is normalized
        like any other sample.
      axis_name: The mapped axes (of vmap or shard_map) over which the batch is distributed. The
        pixels of one sample must be on one device.
      axis_index_groups: Groups of indices along `axis_name`, as in `batch_statistics`.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: `pixels` is not positive, `eps` is negative, the shape of an argument does not fit
        `x`, or `groups` does not divide the batch.

    Example:
      >>> x = jnp.array([[3.0, 0.0], [0.0, 4.0], [-3.0, -4.0]])
      >>> y, _ = unitized_batch_norm(x, alpha=1, eps=0.0)
      >>> print(jnp.linalg.norm(y, axis=1).round(6))
      [1. 1. 1.]
    """
    pixels = None if pixels is None else check_positive(pixels, "pixels")
    check_function(factor, "factor", "jaxnorm.bounded")
    check_flags(per_pixel=per_pixel)
    check_features(x)
    eps = check_eps(eps)
    alpha = per_channel("alpha", alpha, x)
    scale = per_channel("scale", 1 if scale is None else scale, x)
    bias = per_channel("bias", 0 if bias is None else bias, x)

    def factors(square: Float[Array, "*batch 1"]) -> Float[Array, "*batch c"]:
        """The factors that multiply x̂ in lines 10 and 13 of Algorithm 2, from the mean squares."""
        return factor(channels(alpha, square), square + eps)

    affine = Affine(factors, scale, bias)
    reduction = Reduction(axis_name, axis_index_groups, correction)

    def normalize(
        x: Float[Array, "n *spatial c"], keep: Keep
    ) -> tuple[Float[Array, "n *spatial c"], BatchStatistics]:
        batch = own_or_given(x, keep, statistics, reduction)
        if per_pixel or x.ndim == 2:
            y = _unitized_vectors(batch, affine, eps, pixels or 1)
        else:
            y = _unitized_images(batch, keep, affine, eps, pixels or math.prod(x.shape[1:-1]))
        return y.astype(jnp.result_type(x)), batch.statistics

    return by_group(normalize, x, where, groups if statistics is None else 1)


class Affine(NamedTuple):
    """The steps after batch norm, which are lines 10 and 13 of Algorithm 2, scale and bias."""

    factors: Callable[[Array], Array]
    scale: Float[Array, " c"]
    bias: Float[Array, " c"]


def _unitized_vectors(
    batch: Shifted, affine: Affine, eps: float, pixels: Number
) -> Float[Array, "*batch c"]:
    """Unitize vectors by lines 4 to 7 of Algorithm 1."""
    mean, var, scale, bias = (
        channels(a, batch.h) for a in (batch.mean, batch.var, affine.scale, affine.bias)
    )
    normalized = (batch.h - mean) * jax.lax.rsqrt(var + eps)
    square = jnp.square(normalized).sum(-1, keepdims=True) / pixels
    return scale * (affine.factors(square) * normalized) + bias


def _unitized_images(
    batch: Shifted, keep: Keep, affine: Affine, eps: float, pixels: Number
) -> Float[Array, "n *spatial c"]:
    """Unitize images by Algorithm 2, as one gain and one offset for each sample and channel."""
    mean, var = batch.mean[None], batch.var[None] + eps
    about_mean, area = _squares_about_mean(batch, keep)
    square = (about_mean / var).sum(1, keepdims=True) / (pixels * area)  # line 9 of Algorithm 2
    gain = affine.scale[None] * affine.factors(square) * jax.lax.rsqrt(var)
    offset = affine.bias[None] - gain * mean
    spatial = tuple(range(1, batch.h.ndim - 1))
    return jnp.expand_dims(gain, spatial) * batch.h + jnp.expand_dims(offset, spatial)


def _squares_about_mean(
    batch: Shifted, keep: Keep
) -> tuple[Float[Array, "n c"], Float[Array, "n 1"]]:
    """Each channel's sum Σ (x − μ)² over a sample's P pixels (line 6 of Algorithm 2), and P.

    Let h be x minus the shift, and m the mean of h over the batch. In training, the identity
    Σ (h − m)² = Σ h² − 2 m Σ h + P m² avoids another pass over the data.
    """
    if batch.samples is None:  # in inference, `batch.h` is x − μ
        _, about_mean, count = sums_by_sample(batch.h, keep)
        return about_mean, count[:, None]
    first, second, count = batch.samples
    mean, area = batch.mean[None], count[:, None]
    return jnp.maximum(second - 2 * mean * first + area * jnp.square(mean), 0), area
