"""Floating point for every package: the precision of sums, and the edges of square roots.

The one private module that `pruning` and `geometry` import; what else they share of this package's
internals is imported from here too.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm._host import check_on_host as check_on_host
from jaxnorm._host import host_only as host_only
from jaxnorm._host import is_traced as is_traced
from jaxnorm._sharding import auto_sharded as auto_sharded
from jaxnorm._sharding import first_along
from jaxnorm._sharding import flat_rows as flat_rows
from jaxnorm._sharding import replicated as replicated
from jaxnorm._sharding import row_at as row_at

Axes = int | Sequence[int]


def promote_to_float32(x: Float[Array, "*shape"], name: str = "x") -> Float[Array, "*shape"]:
    """`x` in at least float32, the precision in which statistics are summed."""
    check_floating(x, name)
    return x.astype(np.promote_types(x.dtype, np.float32))


def floating(x: int | float | Float[Array, "*shape"], name: str = "x") -> Float[Array, "*shape"]:
    """`x` itself, or a Python number as an array of the default floating dtype."""
    if isinstance(x, int | float):
        if sys.float_info.max < abs(x) < math.inf:
            raise ValueError(f"{name} must fit a float; got a number of {len(str(x))} digits")
        return jnp.asarray(float(x), float)
    check_floating(x, name)
    return jnp.asarray(x)


def check_number(x: Any, name: str) -> None:
    """Raise `TypeError` for what is neither a Python number nor an array of floats."""
    if not isinstance(x, int | float):
        check_floating(x, name)


def check_floating(x: Any, name: str) -> None:
    """Raise `TypeError` for what is no array of floats."""
    check_array(x, name)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be of a floating dtype; got {x.dtype}")


def check_array(x: Any, name: str) -> None:
    """Raise `TypeError` for what is no array that JAX reads, such as a list or a Python number."""
    if not hasattr(x, "dtype"):
        raise TypeError(f"{name} must be an array; got {type(x).__name__}")
    if isinstance(x, np.ndarray | np.generic) and not x.dtype.isnative:
        raise TypeError(
            f"{name} must have this machine's byte order; got {x.dtype.str}: give "
            f"{name}.astype('{x.dtype.newbyteorder('=').name}')"
        )


def check_range(x: Any, name: str, highest: float = math.inf) -> None:
    """Raise `ValueError` for a number outside [0, highest]; under `jit` nothing is checked."""
    if not is_traced(x) and not 0 <= x <= highest:
        raise ValueError(f"{name} must lie in [0, {highest}]; got {x}")


def check_eps(eps: Any, name: str = "eps") -> Any:
    """`eps`, if it is finite and not negative; a Python integer as a float, which all sizes fit."""
    check_range(eps, name)
    return _finite(eps, name)


def check_positive(x: Any, name: str) -> Any:
    """`x`, if it is positive and finite as far as Python can see; an integer as a float."""
    if not is_traced(x) and not x > 0:
        raise ValueError(f"{name} must be positive; got {x}")
    return _finite(x, name)


def _finite(x: Any, name: str) -> Any:
    if not isinstance(x, int | float):
        return x
    if abs(x) > sys.float_info.max:
        raise ValueError(f"{name} must be finite; got {'inf' if x == math.inf else 'more'}")
    return float(x)


def check_function(f: Any, name: str, example: str) -> None:
    """Raise unless `f` can be called: a name, say, is no function."""
    if not callable(f):
        raise TypeError(f"{name} must be a function, such as {example}; got {f!r}")


def check_key(key: Any, name: str = "key") -> None:
    """Raise `TypeError` unless `key` is one random key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.shape != ():
        got = type(key).__name__ if dtype is None else f"{dtype} of shape {key.shape}"
        raise TypeError(f"{name} must be one random key, such as jax.random.key(0); got {got}")


def check_whole(**numbers: Any) -> None:
    """Raise `TypeError` for a number that is neither an `int` nor None."""
    for name, number in numbers.items():
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(f"{name} must be an int; got {number!r}")


def check_finite(x: Array, name: str) -> None:
    """Raise `ValueError` unless every element of `x` is finite; under `jit` nothing is checked."""
    if is_traced(x):
        return
    with jax.ensure_compile_time_eval():  # a constant within a traced function
        bad = int(jnp.sum(~jnp.isfinite(x)))
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {x.size} elements are not")


def matmul(a: Array, b: Array) -> Array:
    """a b in the full precision of the dtype, also where the device has a faster product."""
    return jnp.matmul(a, b, precision="highest")


def safe_sqrt(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """√square, and 0 with gradient zero where `square` is zero."""
    nonzero = square != 0  # a NaN stays one
    return jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, square, 1)), 0)


def inverse_root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / √square, and 1 with gradient zero where `square` is zero."""
    zero = square <= 0  # a NaN stays one
    return jnp.where(zero, 1, jax.lax.rsqrt(jnp.where(zero, 1, square)))


def unit_of(largest: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """A unit in which squares of numbers up to `largest` fit the dtype; NaN where it is infinite.

    At most a 64th of the largest float, since XLA multiplies by its inverse, and a subnormal
    inverse is zero on most devices. Constant in gradients: what has no unit does not depend on it.
    """
    largest = jax.lax.stop_gradient(largest)
    capped = jnp.minimum(largest, float(jnp.finfo(largest.dtype).max) / 64)
    return jnp.where(largest == 0, 1, jnp.where(largest == math.inf, math.nan, capped))


def norm(x: Float[Array, "*shape"], axis: int = -1) -> Float[Array, "*ones"]:
    """Euclidean norm along `axis`, which remains with size 1; its gradient at the origin is zero.

    Relative to the largest entry, so that no square overflows or underflows. Infinite where an
    entry is.
    """
    largest = jnp.max(jnp.abs(x), axis, keepdims=True)
    nonzero = largest != 0  # NaN remains NaN
    scale = unit_of(jnp.where(largest == math.inf, 1, largest))
    square = jnp.sum(jnp.square(x / scale), axis, keepdims=True)
    return jnp.where(nonzero, scale * jnp.sqrt(jnp.where(nonzero, square, 1)), 0)


def center(x: Float[Array, "*shape"], axis: Axes) -> Float[Array, "*shape"]:
    """`x` minus its mean along `axis`, exactly zero where `x` is constant.

    The first entry is subtracted before the mean is formed: a constant then leaves no rounding
    error, and a large mean costs no digits. The gradient is that of x − mean(x).
    """
    axes = axis_tuple(x, axis)
    h = x - jax.lax.stop_gradient(first_along(x, axes))
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


def chi_mean(dims: int) -> float:
    """E ‖z‖ = √2 Γ((d + 1)/2) / Γ(d/2) of a standard normal vector in d = `dims` dimensions."""
    return math.sqrt(2) * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))


class CentralMoments(NamedTuple):
    """Mean of `count` samples, and the means of the powers 2, 3 and 4 of the deviations from it."""

    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Float[Array, "*s"]
    second: Float[Array, "*s"]
    third: Float[Array, "*s"]
    fourth: Float[Array, "*s"]


def merge_means(a: Any, b: Any) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Count and mean of the union of two sets of samples, each a tuple with `count` and `mean`.

    Also the share of `b` in the union, and the deviations of the means of `a` and `b` from its
    mean. A set without samples has deviation 0, whatever its mean is.
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    # The mean of no samples is arbitrary, and the square of its deviation might overflow.
    delta = jnp.where((a.count > 0) & (b.count > 0), b.mean - a.mean, 0)
    mean = jnp.where(a.count > 0, a.mean + share * delta, b.mean)
    return count, mean, share, (-share * delta, (1 - share) * delta)


def merge_central_moments(a: CentralMoments, b: CentralMoments) -> CentralMoments:
    """Moments of the union of two sets of samples, Pébay (2008); the order does not matter."""
    count, mean, share, (deviation_a, deviation_b) = merge_means(a, b)

    def about_union(part: CentralMoments, delta: Array) -> Array:
        """Moments of `part` about the mean of the union, from which its own deviates by `delta`."""
        second = part.second + delta * delta
        third = part.third + 3 * delta * part.second + delta**3
        fourth = part.fourth + 4 * delta * part.third + 6 * delta**2 * part.second + delta**4
        return jnp.stack([second, third, fourth])

    powers = (1 - share) * about_union(a, deviation_a) + share * about_union(b, deviation_b)
    return CentralMoments(count, mean, *powers)
