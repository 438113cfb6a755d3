"""The functions DyT and Derf, which replace a normalization layer and need no statistics.

Each element of the result depends only on the same element of `x`. Samples lie on the leading axes
of an array, and features on the last axis. The result is computed in at least float32 and has the
dtype of `x`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._batch_norm import PerChannel, per_channel
from jaxnorm._statistics import channels, check_features
from jaxnorm.internal import promote_to_float32


def dyt(
    x: Float[Array, "*batch c"],
    alpha: PerChannel,
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
) -> Float[Array, "*batch c"]:
    """Dynamic tanh (Zhu et al., 2025, section 4): scale tanh(alpha x) + bias.

    For every `x`, the result differs from `bias` by at most |scale|: see
    `jaxnorm.shift.dyt_bounds`.

    Args:
      x: One sample or a batch, with features on the last axis.
      alpha: The factor α inside tanh. Zhu et al. use one α for all features, initialized to 0.5.
      scale: The factor γ, one number or one number per feature, by default 1.
      bias: The summand β, one number or one number per feature, by default 0.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: The shape of an argument does not fit `x`.

    Example:
      >>> print(dyt(jnp.array([[0.0, 1.0], [100.0, -100.0]]), 0.5, scale=2.0).round(3))
      [[ 0.     0.924]
       [ 2.    -2.   ]]
    """
    check_features(x, single=True)
    h = promote_to_float32(x) * _along("alpha", alpha, x)
    return affine(jnp.tanh(h), scale, bias).astype(jnp.result_type(x))


def derf(
    x: Float[Array, "*batch c"],
    alpha: PerChannel,
    offset: PerChannel = 0,
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
) -> Float[Array, "*batch c"]:
    """Derf (Chen et al., 2025, Equation 10): scale erf(alpha x + offset) + bias.

    For every `x`, the result differs from `bias` by at most |scale|: see
    `jaxnorm.shift.derf_bounds`.

    Args:
      x: One sample or a batch, with features on the last axis.
      alpha: The factor α inside erf. The paper has one α for all features, initialized to 0.5.
      offset: The summand s inside erf. The paper has one s for all features, initialized to 0.
      scale: The factor γ, one number or one number per feature, by default 1.
      bias: The summand β, one number or one number per feature, by default 0.

    Raises:
      TypeError: `x` is not of a floating dtype.
      ValueError: The shape of an argument does not fit `x`.

    Example:
      >>> print(derf(jnp.array([[0.0, 1.0], [100.0, -100.0]]), 0.5, scale=2.0).round(3))
      [[ 0.     1.041]
       [ 2.    -2.   ]]
    """
    check_features(x, single=True)
    h = promote_to_float32(x) * _along("alpha", alpha, x) + _along("offset", offset, x)
    return affine(jax.scipy.special.erf(h), scale, bias).astype(jnp.result_type(x))


def unitize_with(
    transform: Callable[[Array, Array], Array],
    x: Float[Array, "*batch c"],
    alpha: Array,
    scale: PerChannel | None = None,
    bias: PerChannel | None = None,
) -> Float[Array, "*batch c"]:
    """scale transform(x, alpha) + bias, where `transform` is `unitize` or `unitize_bounded`."""
    y = transform(promote_to_float32(x), alpha)
    return affine(y, scale, bias).astype(jnp.result_type(x))


def affine(
    x: Float[Array, "*batch c"], scale: PerChannel | None = None, bias: PerChannel | None = None
) -> Float[Array, "*batch c"]:
    """scale x + bias; without a scale the factor is 1, and without a bias the summand is 0."""
    h = promote_to_float32(x)
    h = h if scale is None else h * _along("scale", scale, x)
    return (h if bias is None else h + _along("bias", bias, x)).astype(jnp.result_type(x))


def _along(name: str, value: PerChannel, x: Array) -> Array:
    return channels(per_channel(name, value, x), x)
