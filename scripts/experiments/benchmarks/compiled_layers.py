"""The normalization layers beside Flax's batch norm, as programs compiled ahead of time.

A training program runs a layer forward and backward, to its output, its running statistics and
the gradients of its input and parameters. The cotangent passes an optimization barrier together
with the output: as in a network it is not there before the output is, and XLA cannot fuse the sums
of the backward pass with those of the forward pass.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

import jaxnorm

SHAPES = (
    (256, 112, 112, 64),
    (256, 56, 56, 256),
    (256, 14, 14, 1024),
    (8192, 4096),
    (256, 1024),
)
DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}
MOMENTUM = 0.99

Running = tuple[Array, Array]  # mean and variance
Layer = Callable[[dict[str, Array], Running, Array, bool], tuple[Array, Running]]


def flax_layer(
    params: dict[str, Array], running: Running, x: Array, inference: bool
) -> tuple[Array, Running]:
    """`flax.nnx.BatchNorm` that computes in the dtype of `x`."""
    layer = nnx.BatchNorm(
        x.shape[-1],
        use_running_average=inference,
        momentum=MOMENTUM,
        dtype=x.dtype,
        scale_init=lambda *_: params["scale"],
        bias_init=lambda *_: params["bias"],
        rngs=nnx.Rngs(0),
    )
    layer.mean.set_value(running[0])
    layer.var.set_value(running[1])
    return layer(x), (layer.mean[...], layer.var[...])


def our_layer(
    normalize: Callable, params: dict[str, Array], running: Running, x: Array, inference: bool
) -> tuple[Array, Running]:
    """`normalize` with running statistics, the work of Flax's layer."""
    if inference:
        statistics = jaxnorm.BatchStatistics(*running, jnp.ones(()))
        return normalize(x, **params, statistics=statistics)[0], running
    y, batch = normalize(x, **params)
    mean, var = (
        MOMENTUM * old + (1 - MOMENTUM) * new
        for old, new in zip(running, (batch.mean, batch.var), strict=True)
    )
    return y, (mean, var)


FLAX = "flax BatchNorm"
LAYERS: dict[str, Layer] = {
    FLAX: flax_layer,
    "BatchNorm": partial(our_layer, jaxnorm.batch_norm),
    "Unitized, Eq. 10": partial(our_layer, jaxnorm.unitized_batch_norm),
    "Unitized, Eq. 9": partial(
        our_layer, partial(jaxnorm.unitized_batch_norm, factor=jaxnorm.bounded)
    ),
}


def training(layer: Layer) -> Callable:
    """Output, gradients of parameters and input, and new running statistics."""

    def program(params: Any, running: Running, x: Array, dy: Array) -> Any:
        y, vjp, new = jax.vjp(
            lambda params, x: layer(params, running, x, False), params, x, has_aux=True
        )
        dy, y = jax.lax.optimization_barrier((dy, y))
        return y, vjp(dy), new

    return program


def inference(layer: Layer) -> Callable:
    """Output alone, by the running statistics."""

    def program(params: Any, running: Running, x: Array) -> Array:
        return layer(params, running, x, True)[0]

    return program


def arguments(name: str, shape: tuple[int, ...], dtype: Any, sharding: Any) -> tuple:
    """Parameters in float32, running statistics and input of a layer, as shapes on a device."""
    c = jax.ShapeDtypeStruct(shape[-1:], jnp.float32, sharding=sharding)
    names = ["scale", "bias", *(["alpha"] if name.startswith("Unitized") else [])]
    return dict.fromkeys(names, c), (c, c), jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def input_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """The unit of traffic, n."""
    return math.prod(shape) * jnp.dtype(dtype).itemsize


def floor(name: str, shape: tuple[int, ...], mode: str) -> float:
    """Least HBM traffic in n.

    Training of batch norm reads x for the sums, then x to write y; backward x and dy for the
    sums, then x and dy to write dx: 8 n. So do unitized images. Unitized vectors need the sums
    before the norms, and both before the results, in the backward pass too: 4 n and 7 n. In
    inference batch norm reads x and writes y; a unitized layer first reads x for the norms.
    """
    is_unitized = name.startswith("Unitized")
    if mode == "inference":
        return 3.0 if is_unitized else 2.0
    return 11.0 if is_unitized and len(shape) == 2 else 8.0
