"""Functions for arrays that are sharded over Explicit axes of a mesh.

On Auto axes, the compiler chooses shardings and inserts collectives. On Explicit axes, an operation
raises an error if the sharding of its result is ambiguous, and the caller must choose the sharding.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Float, Int, Shaped

from jaxnorm.internal._host import is_traced

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def auto_sharded(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The `function` with replicated results; inside, the compiler chooses all shardings.

    Use `auto_sharded` for functions that sort, multiply or index along axes that may be sharded. On
    Explicit axes, the wrapped functions run as on Auto axes. Arrays in the closure of `function`
    must not be on the mesh.
    """

    @wraps(function)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        mesh = _explicit_mesh((args, options))
        if mesh is None:
            return function(*args, **options)
        arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}

        def inside(args: tuple[Any, ...], arrays: dict[str, Array]) -> Result:
            return function(*args, **{**options, **arrays})

        out = NamedSharding(mesh, PartitionSpec())
        auto = jax.sharding.auto_axes(inside, axes=mesh.explicit_axes, out_sharding=out)
        return auto(args, arrays)  # pyright: ignore[reportCallIssue]

    return call


def replicate(x: Array, *, like: Array | None = None) -> Array:
    """`x`, replicated on all devices if `x` or `like` is sharded over Explicit mesh axes."""
    mesh = _explicit_mesh((x, like))
    return x if mesh is None else reshard(x, NamedSharding(mesh, PartitionSpec()))


def varying_like(start: Result, *arrays: Any) -> Result:
    """The state `start` of a loop, with types that vary over devices in `shard_map` as `arrays` do.

    Inside `shard_map`, JAX refuses a loop whose state is the same on all devices at the start and
    varies after a step. Outside `shard_map`, the result is `start`.
    """
    axes = frozenset().union(*map(_varying_axes, jax.tree.leaves(arrays)))

    def vary(x: Array) -> Array:
        new = tuple(sorted(axes - _varying_axes(x)))
        return jax.lax.pcast(x, new, to="varying") if new else x

    return jax.tree.map(vary, start)


def _varying_axes(x: Any) -> frozenset[Any]:
    """The axes of a `shard_map` over which `x` varies."""
    return jax.typeof(x).mat.varying


def flat_rows(x: Shaped[Array, "n *features"]) -> Shaped[Array, "n d"]:
    """Each row of `x` as a vector; the first axis remains sharded, all other axes are gathered."""
    return jax.vmap(auto_sharded(jnp.ravel))(x)


def row_at(x: Float[Array, "n *shape"], index: Int[Array, ""]) -> Float[Array, "*shape"]:
    """The row `x[index]` for a traced index, computed as a sum over a mask.

    In JAX 0.12, the derivative of `x[index]` for a traced index fails on Explicit mesh axes.
    """
    at_index = (jnp.arange(len(x)) == index).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.sum(x, axis=0, where=at_index)


def first_along(x: Float[Array, "*shape"], axes: tuple[int, ...]) -> Float[Array, "*ones"]:
    """The elements of `x` at index 0 along `axes`; `axes` remain as axes of size 1.

    The axes may be sharded. The code uses a gather, because on an Explicit mesh a slice cannot take
    one element of a sharded axis. The last axis is indexed first, so little data remains to be sent
    between devices when the batch axis is indexed.
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


def spread_slice(x: Float[Array, "*batch c"]) -> Float[Array, "*part c"]:
    """About every 128th sample of `x`, but at least two samples if `x` has two or more.

    The samples are spread evenly over all axes but the last. Spatial axes are sliced before the
    batch axis, because usually the batch is sharded. A slice of a sharded axis needs no
    communication if the stride divides the number of samples on each device.
    """
    sharding = jax.typeof(x).sharding
    # The stride is 1 along an axis of unknown size, such as the batch axis of an exported model.
    known = [axis for axis in (*range(1, x.ndim - 1), 0) if isinstance(x.shape[axis], int)]
    strides = [1] * x.ndim
    rest = min(128, max(1, math.prod(x.shape[axis] for axis in known) // 2))
    for axis in known:
        size, devices = x.shape[axis], _devices(sharding.mesh, sharding.spec[axis])
        # The sharding over Auto mesh axes is not known while tracing, so the code assumes that the
        # axis is split over all devices if its size is a multiple of the number of devices.
        if axis == 0 and devices == 1:
            devices = jax.device_count() if size % jax.device_count() == 0 else 1
        strides[axis] = _stride(min(rest, size), size, devices)
        rest //= strides[axis]
    return jax.lax.slice(x, [s // 2 for s in strides], x.shape, strides)


def _stride(largest: int, size: int, devices: int) -> int:
    """The largest stride up to `largest` that divides the number of elements on each device.

    On one device, the stride is `largest`.
    """
    strides = range(max(largest, 1), 0, -1)
    return next(s for s in strides if devices == 1 or size % (s * devices) == 0)


def _devices(mesh: Mesh | AbstractMesh, axis: Any) -> int:
    """The number of devices over which an axis is split by its entry of a PartitionSpec."""
    return math.prod(mesh.shape[name] for name in jax.tree.leaves(axis))


def split_batch(
    x: Shaped[Array, "n *shape"], groups: int, *, in_loop: bool = False
) -> Shaped[Array, "groups rest *shape"]:
    """The array `x` with its first axis split into (groups, n / groups).

    Each of the two new axes may be sharded. On an Explicit mesh, the groups are sharded if the
    number of devices divides `groups`. If the number of devices only divides n / `groups`, the
    samples of every group are sharded. If the number of devices divides neither `groups` nor n /
    `groups`, the two axes are not sharded. With `in_loop`, the groups are never sharded, because a
    loop cannot run over a sharded axis.
    """
    sharding = jax.typeof(x).sharding
    batch, *others = sharding.spec
    devices = _devices(sharding.mesh, batch)
    rest = x.shape[0] // groups
    spec = (None, None if rest % devices else batch)
    if groups % devices == 0 and not in_loop:
        spec = (batch, None)
    return jax.lax.reshape(
        x,
        (groups, rest, *x.shape[1:]),
        out_sharding=NamedSharding(sharding.mesh, PartitionSpec(*spec, *others)),
    )


def join_batch(x: Shaped[Array, "groups rest *shape"], like: Array) -> Shaped[Array, "n *shape"]:
    """The array `x` with its first two axes merged, and with the sharding of `like`.

    `like` is the array before `split_batch`.
    """
    return jax.lax.reshape(x, like.shape, out_sharding=jax.typeof(like).sharding)


def _explicit_mesh(tree: Any) -> Mesh | AbstractMesh | None:
    """The mesh of the first array in `tree` that may be sharded over Explicit axes, or None.

    A traced array on a mesh with Explicit axes counts as possibly sharded, because `vmap` hides the
    axis that it maps.
    """
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array):
            traced, of_type = is_traced(x), jax.typeof(x).sharding
            hidden = traced and of_type.mesh.explicit_axes
            if hidden or any(entry is not None for entry in of_type.spec):
                sharding = of_type if traced else x.sharding
                return sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    return None
