"""The memory traffic of a training step, compiled ahead of time, with each of eight normalizers.

As in `layers`, the cotangent passes an optimization barrier together with the output. Parameters
and running statistics are in float32, and data are in bfloat16.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Sharding
from jaxtyping import Array

import jaxnorm
from experiments.compiled.compile_only import measure, place

SHAPES = ((256, 56, 56, 256), (8192, 4096))
DTYPE = jnp.bfloat16
NORMS: dict[str, Callable[..., Any]] = {
    "batch norm": jaxnorm.nnx.BatchNorm,
    "unitized": jaxnorm.nnx.UnitizedBatchNorm,
    "unitized, bounded": partial(jaxnorm.nnx.UnitizedBatchNorm, factor=jaxnorm.bounded),
    "layer norm": partial(nnx.LayerNorm, dtype=DTYPE),
    "RMS norm": partial(nnx.RMSNorm, dtype=DTYPE),
    "DyT": jaxnorm.nnx.DyT,
    "Derf": jaxnorm.nnx.Derf,
    "batch renorm": jaxnorm.nnx.BatchRenorm,
}


def training(graph: nnx.GraphDef, params: Any, rest: Any, x: Array, dy: Array) -> Any:
    """The output, the gradients of parameters and input, and the new running statistics."""

    def layer(params: Any, x: Array) -> tuple[Array, Any]:
        model = nnx.merge(graph, params, rest, copy=True)
        return model(x), nnx.state(model, nnx.Not(nnx.Param))

    y, vjp, new = jax.vjp(layer, params, x, has_aux=True)
    dy, y = jax.lax.optimization_barrier((dy, y))
    return y, vjp(dy), new


def rows(sharding: Sharding) -> Iterator[dict[str, Any]]:
    """Yield a row of measurements for each shape and normalizer."""
    for shape in SHAPES:
        n = math.prod(shape) * jnp.dtype(DTYPE).itemsize
        for name, norm in NORMS.items():
            model = nnx.eval_shape(lambda norm=norm, c=shape[-1]: norm(c, rngs=nnx.Rngs(0)))
            graph, *state = nnx.split(model, nnx.Param, ...)
            data = 2 * (jax.ShapeDtypeStruct(shape, DTYPE),)
            program = measure(partial(training, graph), *place((*state, *data), sharding))
            yield {
                "normalizer": name,
                "shape": shape,
                "traffic": program.bytes / n,
                "temporary": program.temporary / n,
                "kernels": program.kernels,
                "seconds": program.seconds,
            }
