"""Computes mean, variance, skewness and kurtosis, and merges the moments of two sets of samples."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._statistics import BatchStatistics, check_same_features
from jaxnorm.internal import (
    Axes,
    CentralMoments,
    axis_tuple,
    center,
    check_range,
    floating,
    merge_central_moments,
    merge_means,
    promote_to_float32,
    safe_sqrt,
    unit_of,
)

Count = int | Float[Array, ""]


class Moments(NamedTuple):
    """The population mean, variance, skewness and kurtosis of samples.

    The skewness is m₃/m₂^1.5 and the kurtosis is m₄/m₂², where mₖ is the k-th central moment. A
    Gaussian has kurtosis 3.
    """

    mean: Float[Array, "*features"]
    var: Float[Array, "*features"]
    skewness: Float[Array, "*features"]
    kurtosis: Float[Array, "*features"]


def moments(x: Float[Array, "*shape"], *, axis: Axes = 0) -> Moments:
    """Population mean, variance, skewness and kurtosis of `x` along `axis`.

    Figure 2 of the unitization paper shows the four moments during training. The moments are
    computed in at least float32, from centered data that are divided by the largest deviation.
    Therefore skewness and kurtosis are correct whenever the sums of samples do not overflow. A
    constant feature has variance 0, and its skewness and kurtosis are NaN. A variance that
    overflows the dtype is NaN.

    Raises:
      ValueError: `axis` is not an axis of `x`, or has no sample.

    Example:
      >>> print(moments(jnp.array([-3.0, 0.0, 0.0, 3.0])).kurtosis)
      2.0
    """
    h = promote_to_float32(x)
    axes = axis_tuple(h, axis)
    centered = center(h, axes)
    unit = unit_of(jnp.max(jnp.abs(centered), axes, keepdims=True))
    m2, m3, m4 = (jnp.mean((centered / unit) ** power, axes) for power in (2, 3, 4))
    return _moments_of_powers(h.mean(axes), m2, m3, m4, unit.reshape(m2.shape))


def merge_moments(a: Moments, b: Moments, *, counts: tuple[Count, Count]) -> Moments:
    """Moments of the union of two sets of samples, Pébay (2008), for data that arrive in parts.

    Args:
      a: Moments of the first set.
      b: Moments of the second set.
      counts: The numbers of samples of the two sets. A set without samples does not change the
        moments of the other set. If a variance underflowed or overflowed, the skewness and the
        kurtosis are NaN.

    Raises:
      TypeError: `a` or `b` is not a `Moments`, or a count is not a number.
      ValueError: The two sets have different numbers of features, or `counts` are not two numbers
        that are at least 0.

    Example:
      >>> x = jnp.array([[0.0], [3.0], [1.0], [7.0], [2.0]])
      >>> merged = merge_moments(moments(x[:2]), moments(x[2:]), counts=(2, 3))
      >>> print(merged.kurtosis.round(5), moments(x).kurtosis.round(5))
      [2.50525] [2.50525]
    """
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Moments):
            raise TypeError(f"{name} must be Moments; got {type(one).__name__}")
    if not isinstance(counts, tuple | list) or len(counts) != 2:
        raise ValueError(f"counts must be the two numbers of samples; got {counts!r}")
    for count in counts:
        check_range(count, "counts")
    check_same_features(a.mean, b.mean)
    a, b = Moments(*map(floating, a)), Moments(*map(floating, b))
    n, m = (jnp.asarray(count, a.mean.dtype) for count in counts)
    a, b = _zero_without_samples(a, n), _zero_without_samples(b, m)
    apart = jnp.where((n > 0) & (m > 0), jnp.abs(b.mean - a.mean), 0)
    spread = safe_sqrt(jnp.maximum(a.var, b.var))
    unit = unit_of(jnp.maximum(apart, spread))
    merged = merge_central_moments(_central(a, n, unit), _central(b, m, unit))
    mean = merge_means(BatchStatistics(a.mean, a.var, n), BatchStatistics(b.mean, b.var, m))[1]
    return _moments_of_powers(mean, merged.second, merged.third, merged.fourth, unit)


def _zero_without_samples(moments: Moments, count: Array) -> Moments:
    """The given `moments`, or zeros if the set of samples is empty."""
    return Moments(*(jnp.where(count > 0, part, 0) for part in moments))


def _central(moments: Moments, count: Array, unit: Array) -> CentralMoments:
    """The central moments; the k-th moment is divided by the k-th power of `unit`."""
    var = moments.var / unit / unit
    constant = (moments.var == 0) & (jnp.isnan(moments.skewness) | (count == 0))
    # If the variance underflowed to 0, the third and fourth moments are unknown, and become NaN.
    safe = jnp.where(constant, 1, jnp.where(var == 0, math.nan, var))
    third = jnp.where(constant, 0, moments.skewness) * safe**1.5
    fourth = jnp.where(constant, 0, moments.kurtosis) * safe**2
    return CentralMoments(count, moments.mean / unit, var, third, fourth)


def _moments_of_powers(
    mean: Array, var: Array, third: Array, fourth: Array, unit: Array
) -> Moments:
    """`Moments` from central moments; the k-th moment is divided by the k-th power of `unit`."""
    constant = var == 0
    safe = jnp.where(constant, 1, var)
    whole = var * unit * unit
    return Moments(
        mean,
        jnp.where(whole == math.inf, math.nan, whole),
        jnp.where(constant, math.nan, third / safe**1.5),
        jnp.where(constant, math.nan, fourth / safe**2),
    )
