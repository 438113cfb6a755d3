"""A training step of a ResNet-50's inner bottleneck block, compiled ahead of time.

The block reads its input and the cotangent of its output. The block writes its output, the gradient
of its input, its parameters after a step of SGD, and its running statistics. The step computes in
bfloat16.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Sharding
from jaxtyping import Array

import jaxnorm
from experiments.compiled.compile_only import Measured, measure, place
from experiments.compiled.layers import Limits, judge

SHAPE = (256, 56, 56, 256)
LEARNING_RATE = 0.1
NORMS = {
    "Flax": (nnx.BatchNorm, Limits()),
    "BatchNorm": (jaxnorm.nnx.BatchNorm, Limits(1.0)),
    "unitized, Eq. 10": (jaxnorm.nnx.UnitizedBatchNorm, Limits(1.05)),
}


def measure_step(norm: Any, sharding: Sharding) -> Measured:
    def second_block() -> Any:
        model = jaxnorm.models.ResNet(
            50, classes=1000, norm=partial(norm, dtype=jnp.bfloat16), rngs=nnx.Rngs(0)
        )
        return model.blocks[1]

    graph, params, statistics = nnx.split(nnx.eval_shape(second_block), nnx.Param, ...)

    def step(params: Any, statistics: Any, x: Array, dy: Array) -> Any:
        def apply(params: Any, x: Array) -> tuple[Array, Any]:
            in_bfloat16 = jax.tree.map(lambda p: p.astype(x.dtype), params)
            block = nnx.merge(graph, in_bfloat16, statistics, copy=True)
            return block(x), nnx.state(block, nnx.BatchStat)

        y, vjp, new_statistics = jax.vjp(apply, params, x, has_aux=True)
        dy, y = jax.lax.optimization_barrier((dy, y))
        gradient, dx = vjp(dy)
        new_params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient)
        return y, dx, new_params, new_statistics

    x = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)
    return measure(step, *place((params, statistics, x, x), sharding))


def block_rows(sharding: Sharding) -> Iterator[dict[str, Any]]:
    flax = None
    for name, (norm, limits) in NORMS.items():
        program = measure_step(norm, sharding)
        flax = flax or program
        row = {
            "layer": name,
            "shape": SHAPE,
            "megabytes": program.bytes / 1e6,
            "ratio_to_flax": program.bytes / flax.bytes,
            "temporary": (program.temporary - flax.temporary) / (2 * math.prod(SHAPE)),
            "kernels": program.kernels,
            "seconds": program.seconds,
        }
        yield judge(row, limits)
