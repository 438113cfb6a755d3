"""What every package needs of floating point: the precision of sums, and the edges of roots."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def promote_to_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` in at least float32, the precision in which statistics are summed."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be of a floating dtype; got {x.dtype}")
    return x.astype(np.promote_types(x.dtype, np.float32))


def inverse_root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / √square, and 1 with gradient zero where `square` is zero."""
    positive = square > 0
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, square, 1)), 1)
