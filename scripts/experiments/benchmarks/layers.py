"""Layers, and networks of them, beside Flax's batch norm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx

import jaxnorm
from experiments.benchmarks.timing import Compiled, Pair, compiled

SHAPES = (
    (128, 32, 32, 16),
    (128, 16, 16, 32),
    (128, 8, 8, 64),
    (32, 56, 56, 64),
    (64, 14, 14, 512),
    (256, 1024),
)
IMAGES = (128, 32, 32, 3)
VECTORS = SHAPES[-1]
DEPTH = 8
LAYERS = {
    "BatchNorm": jaxnorm.nnx.BatchNorm,
    "UnitizedBatchNorm": jaxnorm.nnx.UnitizedBatchNorm,
    "UnitizedBatchNorm(bounded)": partial(jaxnorm.nnx.UnitizedBatchNorm, factor=jaxnorm.bounded),
}


def groups(dtype: Any) -> dict[str, Callable[[], list[Pair]]]:
    """The timed groups, by title."""
    return {
        "training: output and gradients of input and parameters": lambda: training(dtype),
        "inference": lambda: inference(dtype),
        "inference of a whole ResNet-20": lambda: resnets(dtype),
        "training of a whole MLP: output and all gradients": lambda: mlps(dtype),
    }


def training(dtype: Any) -> list[Pair]:
    """Outputs, running statistics and, from a cotangent of the outputs, all gradients."""
    return [
        pair
        for shape in SHAPES
        for pair in pairs(
            shape,
            dtype,
            lambda layer, x: gradient(
                layer, x, jax.random.normal(jax.random.key(1), x.shape, x.dtype)
            ),
        )
    ]


def inference(dtype: Any) -> list[Pair]:
    def frozen(layer: nnx.Module, x: jax.Array) -> Compiled:
        return forward(nnx.view(layer, use_running_average=True), x)

    return [pair for shape in SHAPES for pair in pairs(shape, dtype, frozen)]


def resnets(dtype: Any) -> list[Pair]:
    x = jax.random.normal(jax.random.key(0), IMAGES, dtype)

    def network(norm: jaxnorm.models.Norm) -> Compiled:
        model = jaxnorm.models.PreActResNet(20, classes=10, norm=norm, rngs=nnx.Rngs(0))
        return forward(nnx.view(model, use_running_average=True), x)

    return networks(str(IMAGES), dtype, network)


def mlps(dtype: Any) -> list[Pair]:
    """Layers of vectors where they stand: in a network, which keeps the input of every layer."""
    x = jax.random.normal(jax.random.key(0), VECTORS, dtype)
    width = VECTORS[1]

    def network(norm: jaxnorm.models.Norm) -> Compiled:
        model = jaxnorm.models.MLP(
            inputs=width, widths=(width,) * DEPTH, classes=10, norm=norm, rngs=nnx.Rngs(0)
        )
        return gradient(model, x, jax.random.normal(jax.random.key(1), (len(x), 10), dtype))

    return networks(f"{VECTORS}, {DEPTH} layers", dtype, network)


def networks(
    label: str, dtype: Any, network: Callable[[jaxnorm.models.Norm], Compiled]
) -> list[Pair]:
    """One network with our layers beside the same with Flax's."""
    peer = network(partial(nnx.BatchNorm, dtype=dtype))
    return [
        Pair(f"{name} {label} / flax", ours.run, peer.run, None, ours.memory / peer.memory)
        for name, layer in LAYERS.items()
        for ours in [network(partial(layer, dtype=dtype))]
    ]


def pairs(shape: tuple[int, ...], dtype: Any, program: Callable) -> list[Pair]:
    """Our layers beside Flax's on one input."""
    x = jax.random.normal(jax.random.key(0), shape, dtype)
    copy = jax.jit(lambda x: x + 1)
    peer = program(nnx.BatchNorm(shape[-1], dtype=dtype, rngs=nnx.Rngs(0)), x)
    pairs = []
    for name, layer in LAYERS.items():
        ours = program(layer(shape[-1], dtype=dtype, rngs=nnx.Rngs(0)), x)
        ratio = ours.memory / max(peer.memory, 1)
        label = f"{name} {str(shape).replace(' ', '')} / flax"
        pairs.append(Pair(label, ours.run, peer.run, lambda: copy(x), ratio))
    return pairs


def forward(layer: nnx.Module, x: jax.Array) -> Compiled:
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def run(params: Any, rest: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, in_dtype(params, x.dtype), rest, copy=True)(x)

    return compiled(run, params, rest, x)


def gradient(layer: nnx.Module, x: jax.Array, cotangent: jax.Array) -> Compiled:
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def run(params: Any, x: jax.Array, cotangent: jax.Array) -> Any:
        def outputs(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            layer = nnx.merge(graph, in_dtype(params, x.dtype), rest, copy=True)
            return layer(x), nnx.state(layer, nnx.BatchStat)

        y, gradients, statistics = jax.vjp(outputs, params, x, has_aux=True)
        return y, gradients(cotangent), statistics

    return compiled(run, params, x, cotangent)


def in_dtype(params: Any, dtype: Any) -> Any:
    """Parameters, which are float32, as the computation takes them; statistics stay float32."""
    return jax.tree.map(lambda a: a.astype(dtype), params)
