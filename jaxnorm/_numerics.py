"""What every package needs of floating point: the precision of sums, and the edges of roots.

The one private module that `pruning` and `geometry` import; what else they share of this package's
internals is imported from here too.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm._host import check_on_host as check_on_host
from jaxnorm._sharding import auto_sharded as auto_sharded
from jaxnorm._sharding import flat_rows as flat_rows
from jaxnorm._sharding import replicated as replicated
from jaxnorm._sharding import row_at as row_at


def promote_to_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` in at least float32, the precision in which statistics are summed."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be of a floating dtype; got {x.dtype}")
    return x.astype(np.promote_types(x.dtype, np.float32))


def matmul(a: Array, b: Array) -> Array:
    """a b in the full precision of the dtype, also where the device has a faster product."""
    return jnp.matmul(a, b, precision="highest")


def safe_sqrt(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """√square, and 0 with gradient zero where `square` is zero."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square)


def inverse_root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / √square, and 1 with gradient zero where `square` is zero."""
    positive = square > 0
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, square, 1)), 1)


def norm(x: Float[Array, "*shape"], axis: int = -1) -> Float[Array, "*ones"]:
    """Euclidean norm along `axis`, which remains with size 1; its gradient at the origin is zero.

    Relative to the largest entry, so that no square overflows or underflows.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis, keepdims=True))
    nonzero = largest != 0  # a NaN stays one
    scale = jnp.where(nonzero, largest, 1)
    square = jnp.sum(jnp.square(x / scale), axis, keepdims=True)
    return jnp.where(nonzero, scale * jnp.sqrt(jnp.where(nonzero, square, 1)), 0)


def chi_mean(dims: int) -> float:
    """E ‖z‖ = √2 Γ((d + 1)/2) / Γ(d/2) of a standard normal vector in d = `dims` dimensions."""
    return math.sqrt(2) * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))
