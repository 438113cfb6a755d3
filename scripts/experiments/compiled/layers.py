"""Our normalization layers and Flax's batch norm, compiled ahead of time.

A training program runs a layer forward and backward, and returns the output, the new running
statistics and the gradients of input and parameters. The cotangent passes an optimization barrier
together with the output. The barrier keeps XLA from fusing the sums of the backward pass with the
sums of the forward pass. In a network, XLA cannot fuse the sums of both passes, because the
cotangent is computed only after the output.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array

import jaxnorm
from experiments.compiled.compile_only import Measured, measure, place

SHAPES = ((256, 112, 112, 64), (256, 56, 56, 256), (256, 14, 14, 1024), (8192, 4096), (256, 1024))
DTYPES = ("bfloat16", "float32")
MOMENTUM = 0.99

Mode = Literal["training", "inference"]
Shape = tuple[int, ...]
Running = tuple[Array, Array]  # the running mean and variance
Layer = Callable[[dict[str, Array], Running, Array, Mode], tuple[Array, Running]]


class Limits(NamedTuple):
    """Upper limits for the HBM traffic and the temporary memory of our layer.

    `traffic` limits our layer's traffic, divided by the traffic of Flax's layer. `temporary` limits
    our layer's temporary memory minus the memory of Flax's layer, divided by the bytes of the
    input. None means no limit.
    """

    traffic: float | None = None
    temporary: float | None = None


def flax_layer(
    params: dict[str, Array], running: Running, x: Array, mode: Mode
) -> tuple[Array, Running]:
    """Apply `flax.nnx.BatchNorm` in the dtype of `x`; return the output and running statistics."""
    layer = nnx.BatchNorm(
        x.shape[-1],
        use_running_average=mode == "inference",
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
    normalize: Callable, params: dict[str, Array], running: Running, x: Array, mode: Mode
) -> tuple[Array, Running]:
    """Apply our layer `normalize` and update running statistics, as Flax's layer does."""
    if mode == "inference":
        statistics = jaxnorm.BatchStatistics(*running, jnp.ones(()))
        return normalize(x, **params, statistics=statistics)[0], running
    y, batch = normalize(x, **params)
    mean, var = (
        MOMENTUM * old + (1 - MOMENTUM) * new
        for old, new in zip(running, (batch.mean, batch.var), strict=True)
    )
    return y, (mean, var)


LAYERS: dict[str, Layer] = {
    "Flax": flax_layer,
    "BatchNorm": partial(our_layer, jaxnorm.batch_norm),
    "unitized, Eq. 10": partial(our_layer, jaxnorm.unitized_batch_norm),
    "unitized, Eq. 9": partial(
        our_layer, partial(jaxnorm.unitized_batch_norm, factor=jaxnorm.bounded)
    ),
}


def is_unitized(name: str) -> bool:
    return name.startswith("unitized")


def training(layer: Layer, params: Any, running: Running, x: Array, dy: Array) -> Any:
    """The output, the gradients of parameters and input, and the new running statistics."""
    y, vjp, new = jax.vjp(
        lambda params, x: layer(params, running, x, "training"), params, x, has_aux=True
    )
    dy, y = jax.lax.optimization_barrier((dy, y))
    return y, vjp(dy), new


def forward(layer: Layer, params: Any, running: Running, x: Array) -> tuple[Array, Running]:
    return layer(params, running, x, "training")


def inference(layer: Layer, params: Any, running: Running, x: Array) -> Array:
    return layer(params, running, x, "inference")[0]


def parameters(name: str, channels: int) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """The float32 shapes of a layer's parameters, and of its running mean and variance."""
    c = jax.ShapeDtypeStruct((channels,), jnp.float32)
    names = ("scale", "bias", "alpha") if is_unitized(name) else ("scale", "bias")
    return dict.fromkeys(names, c), (c, c)


def floor(name: str, shape: Shape, mode: Mode) -> int:
    """The least HBM traffic of a layer whose arrays are all in HBM, divided by the bytes of x.

    Let n be the bytes of x. In training, the forward pass of batch norm reads x for the sums, reads
    x again, and writes y (3 n). The backward pass reads x and dy for the sums, reads both again,
    and writes dx (5 n). For batch norm and for a unitized layer of images, the total is 8 n. A
    unitized layer of vectors needs 4 n forward, because it also reads x for the norms, and 7 n
    backward, because it reads x and dy once more. In inference, batch norm reads x and writes y (2
    n), and a unitized layer also reads x for the norms (3 n).
    """
    if mode == "inference":
        return 3 if is_unitized(name) else 2
    return 11 if is_unitized(name) and len(shape) == 2 else 8


def limits(target: str, name: str, shape: Shape, dtype: str, mode: Mode) -> Limits:
    on_tpu, vectors = target.startswith("v5e"), len(shape) == 2
    if mode == "inference":
        return Limits(1.55 if is_unitized(name) else None)
    if name == "BatchNorm" and shape in SHAPES[:4]:
        return Limits(1.0 if on_tpu else 0.9, 0.1)
    if is_unitized(name) and not vectors:
        return Limits(1.0 if on_tpu else 0.95, 0.1)
    if is_unitized(name) and shape == (8192, 4096):
        return Limits((1.2 if dtype == "bfloat16" else 1.4) if on_tpu else 1.45, 1.0)
    if is_unitized(name) and shape == (256, 1024):
        return Limits(1.0 if on_tpu else 1.7, 1.0)
    return Limits()


def layer_rows(
    target: str, sharding: Sharding, shapes: Sequence[Shape], dtypes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield a row of measurements for each dtype, shape, mode and layer."""
    modes: tuple[Mode, ...] = ("training", "inference")
    for dtype, shape, mode in product(dtypes, shapes, modes):
        n = math.prod(shape) * jnp.dtype(dtype).itemsize
        measured = {name: measure_layer(name, shape, dtype, mode, sharding) for name in LAYERS}
        for name, program in measured.items():
            row = {
                "layer": name,
                "shape": shape,
                "dtype": dtype,
                "mode": mode,
                "traffic": program.bytes / n,
                "floor": floor(name, shape, mode),
                "ratio_to_flax": program.bytes / measured["Flax"].bytes,
                "temporary": (program.temporary - measured["Flax"].temporary) / n,
                "kernels": program.kernels,
                "seconds": program.seconds,
            }
            yield judge(row, limits(target, name, shape, dtype, mode))


def measure_layer(name: str, shape: Shape, dtype: str, mode: Mode, sharding: Sharding) -> Measured:
    program, inputs = (training, 2) if mode == "training" else (inference, 1)
    data = inputs * (jax.ShapeDtypeStruct(shape, dtype),)
    arguments = place((*parameters(name, shape[-1]), *data), sharding)
    return measure(partial(program, LAYERS[name]), *arguments)


def judge(row: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Add to a row its limits, and whether the row's rounded measurements are within the limits."""
    pairs = ((row["ratio_to_flax"], limits.traffic), (row["temporary"], limits.temporary))
    held = [round(value, 2) <= limit for value, limit in pairs if limit is not None]
    return row | {"limits": limits._asdict(), "holds": all(held) if held else None}


def collective_rows(devices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the collectives in each layer's forward pass, with batches sharded over `devices`."""
    mesh = Mesh(np.array(devices), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    for shape in ((256, 56, 56, 256), (8192, 4096)):
        expected = 0
        x = place(
            jax.ShapeDtypeStruct(shape, "bfloat16"), NamedSharding(mesh, PartitionSpec("data"))
        )
        for name, layer in LAYERS.items():
            params, running = place(parameters(name, shape[-1]), replicated)
            collectives = measure(partial(forward, layer), params, running, x).collectives
            expected = len(collectives) if name == "Flax" else expected
            yield {
                "layer": name,
                "shape": shape,
                "devices": len(devices),
                "collectives": [c._asdict() for c in collectives],
                "as_few_as_flax": len(collectives) <= expected,
            }
