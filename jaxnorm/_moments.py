"""Mean, variance, skewness and kurtosis, and how those of two sets of samples merge."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import CentralMoments, floating, merge_central_moments, promote_to_float32
from jaxnorm._statistics import Axes, axis_tuple, center, check_same_features

Count = int | Float[Array, ""]


class Moments(NamedTuple):
    """Population moments: skewness m₃/m₂^1.5 and kurtosis m₄/m₂², which is 3 for a Gaussian."""

    mean: Float[Array, "*features"]
    var: Float[Array, "*features"]
    skewness: Float[Array, "*features"]
    kurtosis: Float[Array, "*features"]


def moments(x: Float[Array, "*shape"], *, axis: Axes = 0) -> Moments:
    """Mean, variance, skewness and kurtosis of `x` along `axis`, all of the population.

    The moments that Figure 2 of the unitization paper follows through training. Computed from
    centered data in at least float32. A constant has variance 0 and neither skewness nor kurtosis:
    both are NaN.

    Raises:
      ValueError: `axis` is none of `x`, or holds no sample.

    Example:
      >>> print(moments(jnp.array([-3.0, 0.0, 0.0, 3.0])).kurtosis)
      2.0
    """
    h = promote_to_float32(x)
    axes = axis_tuple(h, axis)
    centered = center(h, axes)
    m2, m3, m4 = (jnp.mean(centered**power, axes) for power in (2, 3, 4))
    return _standardized(h.mean(axes), m2, m3, m4)


def merge_moments(a: Moments, b: Moments, *, counts: tuple[Count, Count]) -> Moments:
    """Moments of the union of two sets of samples, Pébay (2008), for data that come in a stream.

    Args:
      a: Moments of the first set.
      b: Moments of the second.
      counts: How many samples each holds; one that holds none leaves the other unchanged.

    Raises:
      ValueError: The two have different features.

    Example:
      >>> x = jnp.array([[0.0], [3.0], [1.0], [7.0], [2.0]])
      >>> merged = merge_moments(moments(x[:2]), moments(x[2:]), counts=(2, 3))
      >>> print(merged.kurtosis.round(5), moments(x).kurtosis.round(5))
      [2.50525] [2.50525]
    """
    check_same_features(a.mean, b.mean)
    a, b = Moments(*map(floating, a)), Moments(*map(floating, b))
    n, m = (jnp.asarray(count, a.mean.dtype) for count in counts)
    merged = merge_central_moments(_central(a, n), _central(b, m))
    return _standardized(merged.mean, merged.second, merged.third, merged.fourth)


def _central(moments: Moments, count: Array) -> CentralMoments:
    """Central moments of `count` samples: zeros where there are none."""
    positive = (count > 0) & (moments.var > 0)
    third = jnp.where(positive, moments.skewness * moments.var**1.5, 0)
    fourth = jnp.where(positive, moments.kurtosis * moments.var**2, 0)
    mean, var = (jnp.where(count > 0, part, 0) for part in (moments.mean, moments.var))
    return CentralMoments(count, mean, var, third, fourth)


def _standardized(mean: Array, var: Array, third: Array, fourth: Array) -> Moments:
    positive = var > 0
    safe = jnp.where(positive, var, 1)
    return Moments(
        mean,
        var,
        jnp.where(positive, third / safe**1.5, math.nan),
        jnp.where(positive, fourth / safe**2, math.nan),
    )
