"""Inner products, angles and distances of the samples of a batch.

Samples are rows: `x` is (n samples, features). Sums are in at least float32, products at the
highest precision of the device; results have the dtype of `x`. Angles are in radians. What is no
matrix, or outside `jit` not finite, raises `ValueError`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._arguments import samples
from jaxnorm import unit_vector

_ROWS = 16  # at a time: pairwise differences of a whole batch would need n² · features numbers


def gram(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """Inner products of all pairs of samples, x xᵀ.

    Example:
      >>> print(gram(jnp.array([[1.0, 2.0], [0.0, 3.0]])))
      [[5. 6.]
       [6. 9.]]
    """
    h = samples(x)
    return jnp.einsum("id,jd->ij", h, h, precision="highest").astype(x.dtype)


def angles(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """Angles of all pairs of samples, in [0, π]: Eq. 11 of Nachum et al.

    Computed from unit vectors u, v as 2 atan2(‖u − v‖, ‖u + v‖), which resolves 1e-7 in float32
    and 1e-15 in float64; the arccosine of a cosine loses all below 3e-4 and 1e-8. A zero vector
    has no angle: its row and column are NaN. The gradient at equal directions is zero.

    Example:
      >>> x = jnp.array([[1.0, 0.0], [1.0, 1.0], [-3.0, 0.0]])
      >>> print(jnp.degrees(angles(x)[0]).round())
      [  0.  45. 180.]
    """
    h = samples(x)
    u = unit_vector(h)
    half = jnp.arctan2(_pairs(jnp.subtract, u), _pairs(jnp.add, u))
    zero = jnp.all(h == 0, axis=1)
    return jnp.where(zero[:, None] | zero[None], jnp.nan, 2 * half).astype(x.dtype)


def distances(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """Euclidean distances of all pairs of samples, from their differences.

    Equal samples are exactly 0 apart, with gradient zero, and a common offset costs no digits, as
    it does in √(‖u‖² + ‖v‖² − 2 u·v).

    Example:
      >>> print(distances(jnp.array([[0.0, 0.0], [3.0, 4.0]])))
      [[0. 5.]
       [5. 0.]]
    """
    return _pairs(jnp.subtract, samples(x)).astype(x.dtype)


def _pairs(combine: Callable[[Array, Array], Array], x: Array) -> Array:
    """‖combine(xᵢ, xⱼ)‖ for all i and j."""
    return jax.lax.map(lambda row: _norm(combine(row[None], x)), x, batch_size=_ROWS)


def _norm(x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Norms of the rows, relative to the largest entry; the gradient at the origin is zero."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), 1))
    nonzero = largest != 0  # a NaN stays one
    scale = jnp.where(nonzero, largest, 1)
    square = jnp.sum(jnp.square(x / scale[:, None]), 1)
    return jnp.where(nonzero, scale * jnp.sqrt(jnp.where(nonzero, square, 1)), 0)
