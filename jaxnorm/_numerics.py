"""What every package needs of floating point: the precision of sums, and the edges of roots."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Shaped


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


def split_batch(x: Shaped[Array, "n *shape"], groups: int) -> Shaped[Array, "groups rest *shape"]:
    """The first axis of `x` as (groups, n / groups), either of which may carry its sharding.

    On an Explicit mesh these are the groups, or if they do not divide over the devices the samples
    of every group, or neither.
    """
    sharding = jax.typeof(x).sharding
    batch, *others = sharding.spec
    names = batch if isinstance(batch, tuple) else (batch,)
    devices = math.prod(sharding.mesh.shape[name] for name in names if name is not None)
    rest = x.shape[0] // groups
    spec = (batch, None) if groups % devices == 0 else (None, None if rest % devices else batch)
    return jax.lax.reshape(
        x,
        (groups, rest, *x.shape[1:]),
        out_sharding=NamedSharding(sharding.mesh, PartitionSpec(*spec, *others)),
    )


def join_batch(x: Shaped[Array, "groups rest *shape"], like: Array) -> Shaped[Array, "n *shape"]:
    """The two first axes of `x` as one, sharded as `like`, which was split into it."""
    return jax.lax.reshape(x, like.shape, out_sharding=jax.typeof(like).sharding)
