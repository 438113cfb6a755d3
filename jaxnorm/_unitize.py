"""Unitization, which divides a sample by its norm, fully or in part (Huang and Yu).

Norms are Euclidean, along `axis`. The result is computed in at least float32 and has the dtype of
`x`. If `alpha` is 0, the result is `x`. If `alpha` is 1, and `eps` is 0 in `unitize`, the result is
the unit vector x / ‖x‖. The paper's theorems hold for alpha in [0, 1]. The functions do not clip
alpha, because the paper's training also lets alpha leave [0, 1].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import (
    axis_tuple,
    check_array,
    check_eps,
    check_fits,
    norm,
    promote_to_float32,
    unit_of,
)

Alpha = int | float | Float[Array, ""] | Float[Array, " d"]


def unit_vector(x: Float[Array, "*shape"], *, axis: int = -1) -> Float[Array, "*shape"]:
    """Divide by the norm along `axis`: x / ‖x‖, Equation 6; the zero vector gives (1, 0, ..., 0).

    The gradient at the zero vector is zero.

    Elements are divided by the largest absolute value before they are squared. Therefore the result
    has norm 1 for every finite nonzero `x` that is not subnormal.

    Example:
      >>> print(unit_vector(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
      [[0.6 0.8]
       [1.  0. ]]
    """
    h = promote_to_float32(x)
    axis = _one_axis(h, axis)
    largest = jnp.max(jnp.abs(h), axis, keepdims=True)
    nonzero = largest != 0  # the comparison is true for NaN, so NaN remains NaN
    h = h / unit_of(largest)
    square = jnp.sum(jnp.square(h), axis, keepdims=True)
    unit = h * jax.lax.rsqrt(jnp.where(nonzero, square, 1))
    return jnp.where(nonzero, unit, _first_axis(h, axis)).astype(jnp.result_type(x))


def unitize_bounded(
    x: Float[Array, "*shape"], alpha: Alpha, *, axis: int = -1
) -> Float[Array, "*shape"]:
    """Unitize with a bounded result: x / (alpha ‖x‖ + 1 − alpha), Equations 8 and 9.

    A scalar alpha gives Equation 8, and one alpha for each feature gives Equation 9.

    For alpha in [0, 1], the norm of the result is at most 1/min(alpha), which Theorems 3.2 and 3.3
    use. The zero vector gives 0. The Jacobian at the zero vector is diagonal with the elements 1/(1
    − alpha), or 0 where alpha is 1. If alpha is the scalar 1, the zero vector gives (1, 0, ..., 0),
    as in Equation 8. For alpha outside [0, 1], the divisor is zero and changes its sign at ‖x‖ = 1
    − 1/alpha.

    Args:
      x: Vectors along `axis`.
      alpha: A scalar, or one number per element along `axis`.

    Example:
      >>> print(unitize_bounded(jnp.array([3.0, 4.0]), 0.5).round(3))
      [1.    1.333]
    """
    h = promote_to_float32(x)
    axis = _one_axis(h, axis)
    a = _along(alpha, h, axis)
    r = norm(h, axis)
    divisor = a * r + (1 - a)
    undefined = (divisor == 0) & (r == 0)
    y = jnp.where(undefined, 0, h / jnp.where(undefined, 1, divisor))
    if jnp.ndim(alpha) == 0:
        y = jnp.where(undefined, _first_axis(h, axis), y)
    return y.astype(jnp.result_type(x))


def unitize(
    x: Float[Array, "*shape"], alpha: Alpha, *, axis: int = -1, eps: float = 1e-5
) -> Float[Array, "*shape"]:
    """Unitize as in the paper's training, Equation 10: (alpha / √(‖x‖² + eps) + 1 − alpha) x.

    No theorem of the paper covers Equation 10. For alpha < 1, the norm of the result has no bound,
    so the earth mover distance between two sets of results has no bound either. The zero vector
    gives zero, even with `eps=0`. The square ‖x‖² must not overflow (|x| < 1e19 in float32) and,
    with `eps=0`, must not underflow.

    Args:
      x: Vectors along `axis`.
      alpha: A scalar, or one number per element along `axis`.
      eps: The number added to the squared norm.

    Example:
      >>> print(unitize(jnp.array([3.0, 4.0]), 0.5, eps=0.0).round(3))
      [1.8 2.4]
    """
    eps = check_eps(eps)
    h = promote_to_float32(x)
    axis = _one_axis(h, axis)
    a = _along(alpha, h, axis)
    square = jnp.sum(jnp.square(h), axis, keepdims=True) + eps
    inverse = jax.lax.rsqrt(jnp.where(square != 0, square, 1))
    return ((a * inverse + (1 - a)) * h).astype(jnp.result_type(x))


def _one_axis(h: Array, axis: int) -> int:
    """The index of the axis, counted from the front; raise unless `axis` is one axis of `h`."""
    if isinstance(axis, Sequence):
        raise TypeError(f"axis must be one int; got {axis!r}")
    return axis_tuple(h, axis)[0]


def _along(alpha: Alpha, h: Array, axis: int) -> Array:
    """The parameter `alpha` in the dtype of `h`, reshaped to multiply along `axis`."""
    if isinstance(alpha, int | float):
        check_fits(alpha, "alpha")
    else:
        check_array(alpha, "alpha")
        if not jnp.isrealobj(alpha):
            raise TypeError(f"alpha must be real; got {alpha.dtype}")
    a = jnp.asarray(alpha, h.dtype)
    if a.ndim == 0:
        return a
    if a.shape != (h.shape[axis],):
        raise ValueError(
            f"alpha must be a scalar or have shape ({h.shape[axis]},), one number per feature; got "
            f"{a.shape}"
        )
    return a.reshape([-1 if i == axis % h.ndim else 1 for i in range(h.ndim)])


def _first_axis(h: Array, axis: int) -> Array:
    """The vector (1, 0, ..., 0) along `axis`, in a shape that broadcasts with `h`."""
    index = jnp.arange(h.shape[axis]).reshape(
        [-1 if i == axis % h.ndim else 1 for i in range(h.ndim)]
    )
    return (index == 0).astype(h.dtype)
