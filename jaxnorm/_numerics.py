"""What every package needs of floating point: the precision of sums, and the edges of roots."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
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


def first_along(x: Float[Array, "*shape"], axes: tuple[int, ...]) -> Float[Array, "*ones"]:
    """`x` at index 0 of `axes`, which remain with size 1 and may be sharded.

    A gather, because a slice cannot take one entry of a sharded axis of an Explicit mesh. The last
    axis goes first: what crosses devices, along the batch, is then as small as it can be.
    """
    x = jnp.asarray(x)
    for axis in sorted(axes, reverse=True):
        sharding = jax.typeof(x).sharding
        spec = PartitionSpec(*(None if i == axis else s for i, s in enumerate(sharding.spec)))
        index = (slice(None),) * axis + (np.zeros(1, int),)
        x = x.at[index].get(
            mode="promise_in_bounds", out_sharding=NamedSharding(sharding.mesh, spec)
        )
    return x
