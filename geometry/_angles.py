"""Inner products, angles and distances of the samples of a batch.

Samples are the rows of `x`, (n samples, features). Sums are computed in at least float32, and
products in the highest precision of the device. Results have the dtype of `x`. Angles are in
radians. If `x` is not a matrix, or is not finite outside `jit`, the functions raise `ValueError`.

On Explicit mesh axes, each device gathers all samples once. If features are sharded, sums over
features are sums over devices. If the samples are sharded, the Gram matrix has sharded rows, and
angles and distances have sharded columns.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Float

from geometry._arguments import as_samples
from jaxnorm import unit_vector
from jaxnorm.internal import norm, replicate

# The largest size of a block of pairwise differences, in bytes. All differences together have n² ·
# features elements. On TPU and GPU, XLA fuses the differences with the norms and does not store
# them. On a CPU, XLA stores the differences, and the norms are 2.5 times slower if a block exceeds
# the cache.
_BLOCK, _CPU_BLOCK = 2**26, 2**20


def gram(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """The inner products x xᵀ of all pairs of samples; infinite or NaN if they overflow the dtype.

    Example:
      >>> print(gram(jnp.array([[1.0, 2.0], [0.0, 3.0]])))
      [[5. 6.]
       [6. 9.]]
    """
    h = as_samples(x)
    return rows_times(h, _gather_rows(h).T).astype(jnp.result_type(x))


def angles(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """Angles of all pairs of samples, in [0, π], as in Equation 11 of Nachum et al.

    Angles are computed from unit vectors u, v as 2 atan2(‖u − v‖, ‖u + v‖). The formula resolves
    angles of 1e-7 in float32 and 1e-15 in float64; the arccosine of a cosine would resolve only
    angles of 3e-4 in float32 and 1e-8 in float64. The row and the column of a zero vector, which
    has no angle, are NaN. The gradient of an angle between equal directions is zero.

    Example:
      >>> x = jnp.array([[1.0, 0.0], [1.0, 1.0], [-3.0, 0.0]])
      >>> print(jnp.degrees(angles(x)[0]).round())
      [  0.  45. 180.]
    """
    h = as_samples(x)
    u = unit_vector(h)
    half = jnp.arctan2(_pairs(jnp.subtract, u), _pairs(jnp.add, u))
    zero = jnp.all(h == 0, axis=1)
    undefined = replicate(zero)[:, None] | zero[None]
    return jnp.where(undefined, jnp.nan, 2 * half).astype(jnp.result_type(x))


def distances(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """The Euclidean distances of all pairs of samples, computed from their differences.

    The distance of equal samples is exactly 0, with gradient 0. If all samples have a large common
    offset, no digits are lost. The formula √(‖u‖² + ‖v‖² − 2 u·v) would lose digits.

    Example:
      >>> print(distances(jnp.array([[0.0, 0.0], [3.0, 4.0]])))
      [[0. 5.]
       [5. 0.]]
    """
    return _pairs(jnp.subtract, as_samples(x)).astype(jnp.result_type(x))


def rows_times(x: Float[Array, "n k"], w: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """The product x w in full precision; its rows are sharded like the rows of `x`."""
    sharding = jax.typeof(x).sharding
    rows, features = sharding.spec
    explicit = rows is not None or features is not None
    return jnp.matmul(
        x,
        w,
        precision="highest",
        out_sharding=NamedSharding(sharding.mesh, PartitionSpec(rows, None)) if explicit else None,
    )


def trace(g: Float[Array, "n n"]) -> Float[Array, ""]:
    """The trace of `g`; `jnp.trace` raises an error for sharded axes if a mesh is set."""
    return jnp.sum(g, where=jnp.eye(len(g), dtype=bool))


def _pairs(combine: Callable[[Array, Array], Array], x: Float[Array, "n d"]) -> Array:
    """The norm ‖combine(xᵢ, xⱼ)‖ for all i and j.

    The function `combine` must be symmetric up to sign.
    """
    others = _gather_rows(x)

    def norms(block: int) -> Callable[[Array, Array], Array]:
        rows = max(1, block // (x.size * x.dtype.itemsize))

        @jax.checkpoint
        def to_all(x: Array, other: Array) -> Array:
            return norm(combine(x, other[None]))[:, 0]

        return lambda x, others: jax.lax.map(partial(to_all, x), others, batch_size=rows)

    return jax.lax.platform_dependent(x, others, cpu=norms(_CPU_BLOCK), default=norms(_BLOCK))


def _gather_rows(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The array `x` with all its rows on every device; sharded features remain sharded."""
    sharding = jax.typeof(x).sharding
    rows, features = sharding.spec
    if rows is None:
        return x
    return reshard(x, NamedSharding(sharding.mesh, PartitionSpec(None, features)))
