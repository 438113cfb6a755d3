"""The two parts of batch normalization, recentering and rescaling, alone and together.

The parts are defined in Nachum et al., Equations 1-4. Samples lie along `axis`, by default the
first axis. The result has the dtype of `x`. Elements are divided by the largest absolute value
before squaring, so the sum of squares neither overflows nor underflows. Deviations are computed in
at least float32. If a deviation from the first sample, or a sum of such deviations, overflows, the
result is infinite or NaN. Recentering maps a constant feature to exactly 0. If `eps` is 0,
`rescale` does not change a constant feature, and no gradient becomes NaN.

All functions raise `TypeError` for integer input, and `ValueError` if `axis` is not an axis of `x`
or has no sample.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    Axes,
    axis_tuple,
    center,
    check_eps,
    inverse_root,
    promote_to_float32,
    unit_of,
)


def recenter(x: Float[Array, "*shape"], *, axis: Axes = 0) -> Float[Array, "*shape"]:
    """Subtract the mean μ along `axis`: x − μ (Equation 2).

    Example:
      >>> print(recenter(jnp.array([1.0, 2.0, 6.0])))
      [-2. -1.  3.]
    """
    return center(promote_to_float32(x), axis).astype(jnp.result_type(x))


def rescale(
    x: Float[Array, "*shape"], *, axis: Axes = 0, eps: float = 0.0
) -> Float[Array, "*shape"]:
    """Divide by the standard deviation along `axis`: x / √(σ² + eps) (Equations 3 and 4, not 2).

    The variance σ² is biased. The variance is computed about the mean, but the mean is not
    subtracted from x. The function `rescale_rms` divides by the root mean square instead.

    Example:
      >>> print(rescale(jnp.array([1.0, 3.0])))
      [1. 3.]
    """
    h = promote_to_float32(x)
    return _divide(h, center(h, axis), axis, eps).astype(jnp.result_type(x))


def rescale_rms(
    x: Float[Array, "*shape"], *, axis: Axes = 0, eps: float = 0.0
) -> Float[Array, "*shape"]:
    """Divide by the root mean square along `axis`: x / √(mean(x²) + eps).

    The function `rescale` divides by the standard deviation instead. A feature that is zero for all
    samples stays zero.

    Example:
      >>> print(rescale_rms(jnp.array([3.0, -3.0])))
      [ 1. -1.]
    """
    h = promote_to_float32(x)
    return _divide(h, h, axis, eps).astype(jnp.result_type(x))


def standardize(
    x: Float[Array, "*shape"], *, axis: Axes = 0, eps: float = 0.0
) -> Float[Array, "*shape"]:
    """Recenter, then rescale along `axis`: (x − μ) / √(σ² + eps) (Equations 1-4).

    Example:
      >>> print(standardize(jnp.array([1.0, 5.0, 1.0, 5.0])))
      [-1.  1. -1.  1.]
    """
    h = center(promote_to_float32(x), axis)
    return _divide(h, h, axis, eps).astype(jnp.result_type(x))


def _divide(
    x: Float[Array, "*shape"], h: Float[Array, "*shape"], axis: Axes, eps: float
) -> Float[Array, "*shape"]:
    """The quotient x / √(mean(h²) + eps), or `x` itself if the square root is zero."""
    root = check_eps(eps) ** 0.5
    axes = axis_tuple(h, axis)
    unit = unit_of(jnp.maximum(jnp.max(jnp.abs(h), axes, keepdims=True), root))
    square = jnp.square(h / unit).mean(axes, keepdims=True) + jnp.square(root / unit)
    return x / unit * inverse_root(square)
