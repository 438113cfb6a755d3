"""The class of an architecture, and its construction from models of Linen, NNX and Equinox."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx


class Architecture(NamedTuple):
    """A network `apply(params, *inputs)`. `outputs` is the axis of kernels that has the outputs."""

    apply: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]
    outputs: int = -1


Make = Callable[[Any], Architecture]
"""A function from the dtype, float32 or float64, to an architecture."""


def drawn(tree: Any, dtype: Any) -> Any:
    """Random arrays, including running statistics and biases, so that no array is zero."""
    rng = np.random.default_rng(0)

    def array(path: Any, leaf: Any) -> np.ndarray:
        if "var" in jax.tree_util.keystr(path):
            return rng.uniform(0.5, 1.5, leaf.shape).astype(dtype)
        fan_in = np.prod(leaf.shape[:-1]) if len(leaf.shape) > 1 else 4
        return np.asarray(rng.normal(size=leaf.shape) * fan_in**-0.5, dtype)

    return jax.tree_util.tree_map_with_path(array, tree)


def normal(dtype: Any, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def of_linen(module: linen.Module, dtype: Any, *inputs: Any) -> Architecture:
    with jax.numpy_dtype_promotion("standard"):
        shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return Architecture(module.apply, drawn(shapes, dtype), inputs)


def of_nnx(make: Callable[[nnx.Rngs], nnx.Module], dtype: Any, *inputs: Any) -> Architecture:
    model = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    model = nnx.view(model, raise_if_not_found=False, use_running_average=True, decode=False)
    graph, state, rest = nnx.split(model, (nnx.Param, nnx.BatchStat), ...)
    rest = jax.tree.map(_begun, rest)

    def apply(state: Any, *inputs: Any) -> Any:
        return nnx.merge(graph, state, rest, copy=True)(*inputs)  # pyright: ignore[reportCallIssue]

    return Architecture(apply, drawn(state, dtype), inputs)


def _begun(leaf: Any) -> Any:
    """An initial value for the key or the counter of a stream of random numbers."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key(0) if is_key else jnp.zeros(leaf.shape, leaf.dtype)


def of_equinox(make: Callable[[Any], Any], dtype: Any, *inputs: Any) -> Architecture:
    """The architecture of an Equinox model of one example, with `vmap` over the batch."""
    shapes = eqx.filter_eval_shape(make, jax.random.key(0))
    params, rest = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def apply(params: Any, *inputs: Any) -> Any:
        return jax.vmap(eqx.combine(params, rest))(*inputs)

    return Architecture(apply, drawn(params, dtype), inputs, outputs=0)
