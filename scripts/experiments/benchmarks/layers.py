"""Compare the times of our layers, and of networks with our layers, with Flax's batch norm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx

import jaxnorm
from experiments.benchmarks.timing import Compiled, Pair, compiled
from experiments.compiled.normalizers import SHAPES as LARGE

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
    """For each table's title, the callable that makes the table's pairs of functions to time."""
    return {
        "training: output and gradients of input and parameters": lambda: training(dtype),
        "inference": lambda: inference(dtype),
        "inference of a whole ResNet-20": lambda: resnets(dtype),
        "training of a whole MLP: output and all gradients": lambda: mlps(dtype),
    }


def training(dtype: Any) -> list[Pair]:
    """Pairs of functions that return the outputs, the running statistics and all gradients."""

    def both_ways(layer: nnx.Module, x: jax.Array) -> Compiled:
        return gradient(layer, x, jax.random.normal(jax.random.key(1), x.shape, x.dtype))

    return [pair for shape in shapes() for pair in layers(shape, dtype, both_ways)]


def inference(dtype: Any) -> list[Pair]:
    def frozen(layer: nnx.Module, x: jax.Array) -> Compiled:
        return forward(nnx.view(layer, use_running_average=True), x)

    return [pair for shape in shapes() for pair in layers(shape, dtype, frozen)]


def shapes() -> tuple[tuple[int, ...], ...]:
    """The shapes of the layers' inputs; on a GPU or TPU, some inputs are larger than any cache."""
    return SHAPES if jax.default_backend() == "cpu" else SHAPES + LARGE


def resnets(dtype: Any) -> list[Pair]:
    x = jax.random.normal(jax.random.key(0), IMAGES, dtype)

    def network(norm: jaxnorm.models.Norm) -> Compiled:
        model = jaxnorm.models.PreActResNet(20, classes=10, norm=norm, rngs=nnx.Rngs(0))
        return forward(nnx.view(model, use_running_average=True), x)

    return pairs(str(IMAGES), dtype, network)


def mlps(dtype: Any) -> list[Pair]:
    """Pairs to time perceptrons; they store the input of every layer for the backward pass."""
    x = jax.random.normal(jax.random.key(0), VECTORS, dtype)
    width = VECTORS[1]

    def network(norm: jaxnorm.models.Norm) -> Compiled:
        model = jaxnorm.models.MLP(
            inputs=width, widths=(width,) * DEPTH, classes=10, norm=norm, rngs=nnx.Rngs(0)
        )
        return gradient(model, x, jax.random.normal(jax.random.key(1), (len(x), 10), dtype))

    return pairs(f"{VECTORS}, {DEPTH} layers", dtype, network)


def layers(
    shape: tuple[int, ...], dtype: Any, program: Callable[[Any, jax.Array], Compiled]
) -> list[Pair]:
    """Pairs that compare each of our layers with Flax's layer, on one input."""
    x = jax.random.normal(jax.random.key(0), shape, dtype)
    copy = jax.jit(lambda x: x + 1)

    def layer(norm: jaxnorm.models.Norm) -> Compiled:
        return program(norm(shape[-1], rngs=nnx.Rngs(0)), x)

    return pairs(str(shape).replace(" ", ""), dtype, layer, copy=lambda: copy(x))


def pairs(
    label: str,
    dtype: Any,
    program: Callable[[jaxnorm.models.Norm], Compiled],
    copy: Callable[[], Any] | None = None,
) -> list[Pair]:
    """For each of our layers, pair `program` of our layer with `program` of Flax's layer."""
    peer = program(partial(nnx.BatchNorm, dtype=dtype))
    measured = {name: program(partial(norm, dtype=dtype)) for name, norm in LAYERS.items()}
    return [
        Pair(
            f"{name} {label} / flax",
            ours.run,
            peer.run,
            copy,
            ours.memory / max(peer.memory, 1),
            like=name,
        )
        for name, ours in measured.items()
    ]


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
    """Float32 parameters, cast to the dtype of the computation; statistics remain float32."""
    return jax.tree.map(lambda a: a.astype(dtype), params)
