"""Arrays that are sharded over Explicit axes of a mesh, as those of `jax.make_mesh` are.

On Auto axes the compiler places collectives as it needs them. On Explicit axes an operation whose
result has no one sharding raises, and the function that calls it decides.
"""

import jax
from jax.sharding import NamedSharding, PartitionSpec, reshard
from jaxtyping import Array


def replicated(x: Array) -> Array:
    """`x` on every device, where it is sharded over Explicit mesh axes; `x` itself otherwise."""
    sharding = jax.typeof(x).sharding
    if all(axes is None for axes in sharding.spec):
        return x
    return reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*[None] * x.ndim)))
