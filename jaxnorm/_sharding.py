"""Arrays that are sharded over Explicit axes of a mesh, as those of `jax.make_mesh` are.

On Auto axes the compiler places collectives as it needs them. On Explicit axes an operation whose
result has no one sharding raises, and the function that calls it decides.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Shaped

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def auto_sharded(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` with the compiler choosing the shardings inside it; its results are replicated.

    For functions that sort, multiply or index along axes which may be sharded: they run on
    Explicit axes as on Auto axes. What `function` closes over must not lie on the mesh.
    """

    @wraps(function)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        mesh = _explicit_mesh((args, options))
        if mesh is None:
            return function(*args, **options)
        arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}

        def inside(args: tuple[Any, ...], arrays: dict[str, Array]) -> Result:
            return function(*args, **{**options, **arrays})

        everywhere = NamedSharding(mesh, PartitionSpec())
        auto = jax.sharding.auto_axes(inside, axes=mesh.explicit_axes, out_sharding=everywhere)
        return auto(args, arrays)  # pyright: ignore[reportCallIssue]

    return call


def replicated(x: Array) -> Array:
    """`x` on every device, where it is sharded over Explicit mesh axes; `x` itself otherwise."""
    mesh = _explicit_mesh(x)
    return x if mesh is None else reshard(x, NamedSharding(mesh, PartitionSpec()))


def flat_rows(x: Shaped[Array, "n *features"]) -> Shaped[Array, "n d"]:
    """Every x[i] as one vector; the first axis stays sharded, the others are gathered."""
    return jax.vmap(auto_sharded(jnp.ravel))(x)


def _explicit_mesh(tree: Any) -> Mesh | AbstractMesh | None:
    """The mesh over whose Explicit axes an array of `tree` is sharded, if there is one."""
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array) and any(a is not None for a in jax.typeof(x).sharding.spec):
            sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
            return sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    return None
