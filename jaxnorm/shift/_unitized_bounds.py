"""Bounds on the earth mover distance of unitized outputs, and cases where the paper's bounds fail.

Distances are between the outputs of one layer at two times of training. The distribution of a set
of samples gives each sample the same weight. `alpha` is the parameter of the unitized layer.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    check_numeric,
    check_positive,
    check_whole,
    floating,
    host_only,
    promote_to_float32,
)
from jaxnorm.shift._samples import check_pair, length

Alpha = int | float | Float[Array, "..."]
"""A number, or one number for each feature."""


def unitized_upper_bound(
    alpha: Alpha, x: Float[Array, "n d"] | None = None, y: Float[Array, "m d"] | None = None
) -> Float[Array, ""]:
    """Theorems 3.1 to 3.3 bound the earth mover distance of unitized outputs by 2/min(alpha).

    The bound 2/min(alpha) holds for `unit_vector` (Equation 6, alpha 1) and `unitize_bounded`
    (Equations 8 and 9), with the same alpha at both times of training. If min(alpha) is 0, the
    bound is E‖X‖ + E‖Y‖, plus 2 if alpha has one number for each feature. If min(alpha) is 0 and no
    samples are given, the bound is infinite. Unitization does not always reduce the distance.

    The bound 2/min(alpha) does not hold for `unitize` (Equation 10), the transformation that the
    paper trains. No theorem covers Equation 10, and the distance of `interpolation_counterexample`
    can exceed 2/alpha by any factor. For Equation 10, use `interpolated_upper_bound`.

    Args:
      alpha: A scalar, or one number for each feature. If an alpha is outside [0, 1], there is no
        bound, and the result is NaN.
      x: Outputs before unitization, needed only if min(alpha) is 0.
      y: Outputs before unitization at a second time of training.

    Example:
      >>> print(unitized_upper_bound(jnp.array([0.5, 1.0])))
      4.0
    """
    alpha = _at_least_float32(alpha)
    if alpha.size == 0:
        raise ValueError(f"alpha must have at least one number; got shape {alpha.shape}")
    if (x is None) != (y is None):
        raise ValueError("x and y must be given together; got one of them")
    low = alpha.min()
    at_zero = jnp.full_like(low, math.inf)
    if x is not None and y is not None:
        check_pair(x, y)
        _check_features(alpha, x)
        at_zero = (length(x).mean() + length(y).mean()).astype(low.dtype) + (2 if alpha.ndim else 0)
    bound = jnp.where(low > 0, 2 / jnp.where(low > 0, low, 1), at_zero)
    return jnp.where((low >= 0) & (alpha.max() <= 1), bound, math.nan)


def sharp_unitized_upper_bound(
    alpha: Alpha, x: Float[Array, "n d"], y: Float[Array, "m d"]
) -> Float[Array, ""]:
    """A bound for Equation 9, the mean of r/m(r) for X plus the same mean for Y, with norms r.

    In the bound, r = ‖X‖ is the norm of a sample, and m(r) = min_j (alpha_j r + 1 − alpha_j).

    For `unitize_bounded` and alpha in [0, 1], `sharp_unitized_upper_bound` is never above the
    bounds of Theorems 3.2 and 3.3, and is continuous at alpha 0. If an alpha is outside [0, 1], the
    bound is NaN. If an alpha is 1, a zero vector contributes 1, because Equation 8 maps the zero
    vector to a unit vector.

    Args:
      alpha: A scalar, or one number for each feature.
      x: Outputs before unitization.
      y: Outputs before unitization at a second time of training.

    Example:
      >>> far = jnp.array([[1e6, 0.0]])
      >>> print(sharp_unitized_upper_bound(jnp.array(0.5), far, -far).round(3))
      4.0
    """

    def reach(a: Float[Array, " n"], r: Float[Array, " n"]) -> Float[Array, " n"]:
        divisor = a * r + (1 - a)
        undefined = divisor <= 0  # the comparison is false for NaN, so NaN remains NaN
        return jnp.where(undefined, 1, r / jnp.where(undefined, 1, divisor))

    return _mean_reach(reach, alpha, x, y)


def interpolated_upper_bound(
    alpha: Alpha, x: Float[Array, "n d"], y: Float[Array, "m d"]
) -> Float[Array, ""]:
    """A bound for Equation 10: E max_j (alpha_j + (1 − alpha_j) ‖X‖) plus the same mean for Y.

    The bound grows with the outputs, and therefore with the dimension of the outputs. The paper
    claims bounds that do not depend on moments of the outputs. For Equation 10, the claimed bounds
    hold only at alpha = 1. If an alpha is outside [0, 1], the result is NaN.

    Args:
      alpha: A scalar, or one number for each feature.
      x: Outputs before unitization.
      y: Outputs before unitization at a second time of training.

    Example:
      >>> far = jnp.array([[1e6, 0.0]])
      >>> print(interpolated_upper_bound(jnp.array(0.5), far, -far))
      1000001.0
    """

    def reach(a: Float[Array, " n"], r: Float[Array, " n"]) -> Float[Array, " n"]:
        return a + (1 - a) * r

    return _mean_reach(reach, alpha, x, y)


@host_only()
def interpolation_counterexample(
    alpha: float, *, length: float, dims: int = 1
) -> tuple[Float[Array, "1 d"], Float[Array, "1 d"], float]:
    """Two outputs ±R e₁ whose distance after Equation 10 with eps 0 is 2 (alpha + (1 − alpha) R).

    The outputs are computed on the host from Python numbers. If R > (1 + alpha)/alpha, the distance
    exceeds 2/alpha, the bound of Theorems 3.1 to 3.3. The distance grows without limit as R grows.
    Therefore `unitize` has no bound that depends only on alpha.

    Args:
      alpha: The parameter of unitization, in (0, 1).
      length: The norm R of both outputs.
      dims: The number of elements of each output.

    Raises:
      ValueError: `alpha` is not in (0, 1), `length` is not positive, or `dims` is below 1.

    Example:
      >>> x, y, distance = interpolation_counterexample(0.5, length=100.0)
      >>> print(distance, unitized_upper_bound(jnp.array(0.5)))
      101.0 4.0
    """
    check_whole(dims=dims)
    check_numeric(alpha, "alpha")
    check_numeric(length, "length")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1); got {alpha}")
    if not (length > 0 and dims >= 1):
        raise ValueError(
            f"length must be positive and dims must be at least 1; got length {length} and dims "
            f"{dims}"
        )
    length = check_positive(length, "length")
    x = length * jnp.eye(1, dims)
    return x, -x, 2 * (alpha + (1 - alpha) * length)


def _mean_reach(
    reach: Callable[[Array, Array], Array], alpha: Alpha, x: Array, y: Array
) -> Float[Array, ""]:
    """The largest mean output norm for inputs with the norms of `x`, plus the same mean for `y`.

    The function `reach` returns the largest norm of an output for an alpha and an input norm.

    For norms above 1, the smallest alpha gives the largest output. For norms below 1, the largest
    alpha gives the largest output.
    """
    check_pair(x, y)
    alpha = _at_least_float32(alpha)
    _check_features(alpha, x)
    dtype = promote_to_float32(x).dtype
    low, high = alpha.min().astype(dtype), alpha.max().astype(dtype)

    def mean(part: Float[Array, "n d"]) -> Float[Array, ""]:
        r = length(part)
        return reach(jnp.where(r >= 1, low, high), r).mean()

    return jnp.where((low >= 0) & (high <= 1), mean(x) + mean(y), math.nan)


def _at_least_float32(alpha: Alpha) -> Float[Array, "*d"]:
    alpha = promote_to_float32(floating(alpha, "alpha"), "alpha")
    if alpha.ndim > 1:
        raise ValueError(f"alpha must be a scalar or a vector; got shape {alpha.shape}")
    return alpha


def _check_features(alpha: Array, x: Array) -> None:
    if x.ndim != 2:
        raise ValueError(f"x and y must have shape (samples, features); got {x.shape}")
    if alpha.ndim and alpha.shape != x.shape[1:]:
        raise ValueError(f"alpha must be a scalar or have shape {x.shape[1:]}; got {alpha.shape}")
