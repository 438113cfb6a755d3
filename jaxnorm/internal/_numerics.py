"""Floating-point functions for all packages, such as norms and safe square roots."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxnorm.internal._checks import check_axes, check_fits, check_floating
from jaxnorm.internal._sharding import first_along

Axes = int | Sequence[int]
Number = Any  # a Python number or an array of floats


def promote_to_float32(x: Float[Array, "*shape"], name: str = "x") -> Float[Array, "*shape"]:
    """`x` in at least float32, the dtype in which sums are computed."""
    check_floating(x, name)
    return jnp.asarray(x).astype(np.promote_types(jnp.result_type(x), np.float32))


def promote_to(x: Float[Array, "*shape"], dtype: DTypeLike | None) -> Float[Array, "*shape"]:
    """`x` in a dtype that is precise enough for a result that is later rounded to `dtype`.

    The dtype of `x` suffices if it is `dtype` or has more bits. If the dtype of `x` does not
    suffice, `x` is promoted to at least float32, because neither bfloat16 nor float16 has all
    numbers of the other dtype.
    """
    check_floating(x, "x")
    if dtype is None or jnp.dtype(dtype) == x.dtype:
        return x
    narrow = x.dtype.itemsize <= jnp.dtype(dtype).itemsize
    return jnp.asarray(x).astype(np.promote_types(dtype, np.float32)) if narrow else x


def floating(x: int | float | Float[Array, "*shape"], name: str = "x") -> Float[Array, "*shape"]:
    """`x` as an array; a Python number gets the default floating dtype."""
    if isinstance(x, int | float):
        check_fits(x, name)
        return jnp.asarray(float(x), float)
    check_floating(x, name)
    return jnp.asarray(x)


def matmul(a: Array, b: Array) -> Array:
    """The matrix product of `a` and `b` in the full precision of their dtype.

    By default, many devices compute a product of lower precision, which is faster.
    """
    return jnp.matmul(a, b, precision="highest")


def safe_sqrt(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The square root of `square`; where `square` is zero, the root and its gradient are 0."""
    nonzero = square != 0  # the comparison is true for NaN, so NaN remains NaN
    return jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, square, 1)), 0)


def inverse_root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / √square; where `square` is zero or negative, the result is 1 and its gradient 0."""
    zero = square <= 0  # the comparison is false for NaN, so NaN remains NaN
    return jnp.where(zero, 1, jax.lax.rsqrt(jnp.where(zero, 1, square)))


def unit_of(largest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """A divisor for numbers up to `largest`, so that the squares of the quotients do not overflow.

    The unit is `largest`, but at most a 64th of the largest float. XLA multiplies by the inverse of
    the unit, and the inverse of a larger unit would be subnormal, which most devices replace by
    zero. If `largest` is zero, the unit is 1. If `largest` is infinite, the unit is NaN. Gradients
    treat the unit as a constant.
    """
    largest = jax.lax.stop_gradient(largest)
    capped = jnp.minimum(largest, float(jnp.finfo(largest.dtype).max) / 64)
    return jnp.where(largest == 0, 1, jnp.where(largest == math.inf, math.nan, capped))


def norm(x: Float[Array, "*shape"], axis: int = -1) -> Float[Array, "*ones"]:
    """The Euclidean norm along `axis`, which remains as an axis of size 1.

    The gradient at the origin is zero. Elements are divided by `unit_of` the largest absolute value
    before they are squared, so no square overflows. The norm is infinite if an element is infinite.
    """
    largest = jnp.max(jnp.abs(x), axis, keepdims=True)
    nonzero = largest != 0  # the comparison is true for NaN, so NaN remains NaN
    scale = unit_of(jnp.where(largest == math.inf, 1, largest))
    square = jnp.sum(jnp.square(x / scale), axis, keepdims=True)
    return jnp.where(nonzero, scale * jnp.sqrt(jnp.where(nonzero, square, 1)), 0)


def center(x: Float[Array, "*shape"], axis: Axes) -> Float[Array, "*shape"]:
    """`x` minus its mean along `axis`; the result is exactly zero if `x` is constant along `axis`.

    The first element is subtracted before the mean is computed, so a constant has no rounding
    error, and a large mean does not reduce the precision. The gradient of `center` is the gradient
    of x − mean(x).
    """
    axes = axis_tuple(x, axis)
    h = x - jax.lax.stop_gradient(first_along(x, axes))
    return h - h.mean(axes, keepdims=True)


def axis_tuple(x: Array, axis: Axes) -> tuple[int, ...]:
    """The axes in `axis` as nonnegative indices; raise if one of the axes has size 0."""
    given: tuple[Any, ...] = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    check_axes(given, x.shape, axis)
    axes = tuple(int(i) % x.ndim for i in given)
    if any(x.shape[i] == 0 for i in axes):
        raise ValueError(f"axis must hold at least one sample; got shape {x.shape}, axis {axis}")
    return axes


def chi_mean(dims: int) -> float:
    """The mean norm of a standard normal vector z of d = `dims` elements.

    The formula is E ‖z‖ = √2 Γ((d + 1)/2) / Γ(d/2).
    """
    return math.sqrt(dims - 2 * chi_defect(dims))


def chi_defect(dims: Number) -> Number:
    """Half the variance of a chi variable, d/2 − R² for d = `dims` and R = Γ((d + 1)/2)/Γ(d/2).

    The series R² = y/4 · exp(−Σₖ E₂ₖ y⁻²ᵏ/(2k)), with y = 2d − 1 and Euler's numbers E₂ₖ, is
    precise for large d. Therefore the code evaluates the series at d + 16, and returns to d in
    eight steps of the recursion R(d) = d/(d + 1) R(d + 2). Each step is a sum of positive terms, so
    no digits cancel. The constants in the code are the coefficients of the expanded series in y⁻².
    For a Python number, the result is a Python number.
    """
    y = 2 * (dims + 16) - 1
    u = 1 / y / y
    series = 0.0
    for coefficient in (-227803437 / 1024, 1268343 / 256, -21429 / 128, 153 / 16, -9 / 8, 1 / 2):
        series = (series + coefficient) * u
    defect = 0.25 - y / 4 * series
    for step in range(14, -1, -2):
        d = dims + step
        share = d / (d + 1)
        defect = share * (0.5 / (d + 1) + share * defect)
    return defect


class CentralMoments(NamedTuple):
    """The mean of `count` samples, and their second, third and fourth central moments."""

    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Float[Array, "*s"]
    second: Float[Array, "*s"]
    third: Float[Array, "*s"]
    fourth: Float[Array, "*s"]


def merge_means(a: Any, b: Any) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """The count and the mean of the union of two sets of samples.

    The arguments have fields `count` and `mean`. The result also has the share of `b` in the union,
    and the deviations of both means from the mean of the union. If one set has no samples, both
    deviations are 0.
    """
    count = a.count + b.count
    share = b.count / jnp.where(count == 0, 1, count)
    # The mean of an empty batch is arbitrary, so `delta` could be too large to be squared.
    delta = jnp.where((a.count > 0) & (b.count > 0), b.mean - a.mean, 0)
    mean = jnp.where(a.count > 0, a.mean + share * delta, b.mean)
    return count, mean, share, (-share * delta, (1 - share) * delta)


def merge_central_moments(a: CentralMoments, b: CentralMoments) -> CentralMoments:
    """The central moments of the union of two sets of samples, Pébay (2008)."""
    count, mean, share, (deviation_a, deviation_b) = merge_means(a, b)

    def about_union(part: CentralMoments, delta: Array) -> Array:
        """The moments of `part` about the mean of the union; the two means differ by `delta`."""
        second = part.second + delta * delta
        third = part.third + 3 * delta * part.second + delta**3
        fourth = part.fourth + 4 * delta * part.third + 6 * delta**2 * part.second + delta**4
        return jnp.stack([second, third, fourth])

    powers = (1 - share) * about_union(a, deviation_a) + share * about_union(b, deviation_b)
    return CentralMoments(count, mean, *powers)
