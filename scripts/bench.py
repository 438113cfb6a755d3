"""Speed against Flax and SciPy, as ratios of times taken alternately in one process.

    python scripts/bench.py            # about three minutes on 2 cores

Every pair is compiled and warmed up first; the two are then timed in turn, and the ratio is that of
the medians, with the quartiles of the ratios of neighbours. Below 1, ours is faster. Layers are
also set beside a plain copy of their input, the floor that memory sets, and beside the temporary
memory of Flax's compiled program.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
import tyro
from flax import nnx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jaxnorm

SHAPES = (
    (128, 32, 32, 16),
    (128, 16, 16, 32),
    (128, 8, 8, 64),
    (32, 56, 56, 64),
    (64, 14, 14, 512),
    (256, 1024),
)
IMAGES = (128, 32, 32, 3)
LAYERS = ("BatchNorm", "UnitizedBatchNorm")
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class Pair(NamedTuple):
    """Two ways to the same end, and what a copy of the data would take."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    copy: Callable[[], Any] | None = None
    memory: float | None = None  # temporary, ours over the peer's


def main(runs: int = 30, dtype: str = "float32") -> None:
    """Time our functions beside their peers and print a table of each group.

    Args:
      runs: Timed runs of each side, after warming up; at least 3.
      dtype: Of the layers' inputs, float32 or bfloat16; parameters are float32.
    """
    if runs < 3:
        raise SystemExit(f"--runs must be at least 3; got {runs}")
    if dtype not in DTYPES:
        raise SystemExit(f"--dtype must be one of {', '.join(DTYPES)}; got {dtype}")
    groups = {
        "training: output and gradients of input and parameters": training(DTYPES[dtype]),
        "inference": inference(DTYPES[dtype]),
        "inference of a whole ResNet-20": networks(DTYPES[dtype]),
        "distances": distances(),
    }
    device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
    pairs = [pair for group in groups.values() for pair in group]
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("timing", total=len(pairs))
        for title, group in groups.items():
            table = Table(title=f"{title}; {device}, {dtype}, {runs} runs a side")
            for column in ("what", "ours, ms", "peer, ms", "ratio", "quartiles", "copy", "memory"):
                table.add_column(column, justify="left" if column == "what" else "right")
            ratios: dict[str, list[float]] = {}
            for pair in group:
                ratio, cells = timed(pair, runs)
                ratios.setdefault(pair.name.split()[0], []).append(ratio)
                table.add_row(pair.name, *cells)
                progress.advance(task)
            for name, found in ratios.items():
                if len(found) > 1:
                    mean = math.exp(sum(map(math.log, found)) / len(found))
                    table.add_row(f"{name}, geometric mean", "", "", f"{mean:.2f}")
            Console(width=120).print(table)


def timed(pair: Pair, runs: int) -> tuple[float, list[str]]:
    """Ratio of the medians, and the cells of the table's row."""
    a, b = alternately(pair.ours, pair.peer, runs)
    low, high = np.quantile(a / b, (0.25, 0.75))
    ratio = float(np.median(a) / np.median(b))
    cells = [
        f"{1e3 * np.median(a):.2f}",
        f"{1e3 * np.median(b):.2f}",
        f"{ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
    ]
    copied = ""
    if pair.copy is not None:
        a, floor = alternately(pair.ours, pair.copy, runs)
        copied = f"{np.median(a) / np.median(floor):.1f}"
    return ratio, [*cells, copied, "" if pair.memory is None else f"{pair.memory:.2f}"]


def alternately(
    ours: Callable[[], Any], peer: Callable[[], Any], runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of `runs` calls of each, taken in turn after three warm-up calls."""
    seconds = np.empty((runs + 3, 2))
    for i, j in np.ndindex(seconds.shape):
        start = time.perf_counter()
        jax.block_until_ready((ours, peer)[j]())
        seconds[i, j] = time.perf_counter() - start
    return seconds[3:, 0], seconds[3:, 1]


def training(dtype: Any) -> list[Pair]:
    """Value and gradient of a loss that weighs the outputs, as one compiled program."""
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
    def frozen(layer: nnx.Module, x: jax.Array) -> "Compiled":
        return forward(nnx.view(layer, use_running_average=True), x)

    return [pair for shape in SHAPES for pair in pairs(shape, dtype, frozen)]


def networks(dtype: Any) -> list[Pair]:
    def network(norm: Callable, x: jax.Array) -> "Compiled":
        model = jaxnorm.models.PreActResNet(20, classes=10, norm=norm, rngs=nnx.Rngs(0))
        return forward(nnx.view(model, use_running_average=True), x)

    x = jax.random.normal(jax.random.key(0), IMAGES, dtype)
    peer = network(nnx.BatchNorm, x)
    return [
        Pair(f"{name} {IMAGES} / flax", ours.run, peer.run, None, ours.memory / peer.memory)
        for name in LAYERS
        for ours in [network(getattr(jaxnorm.nnx, name), x)]
    ]


def pairs(shape: tuple[int, ...], dtype: Any, program: Callable) -> list[Pair]:
    """Our layers beside Flax's on one input."""
    x = jax.random.normal(jax.random.key(0), shape, dtype)
    copy = jax.jit(lambda x: x + 1)
    peer = program(nnx.BatchNorm(shape[-1], rngs=nnx.Rngs(0)), x)
    found = []
    for name in LAYERS:
        ours = program(getattr(jaxnorm.nnx, name)(shape[-1], rngs=nnx.Rngs(0)), x)
        ratio = ours.memory / max(peer.memory, 1)
        label = f"{name} {str(shape).replace(' ', '')} / flax"
        found.append(Pair(label, ours.run, peer.run, lambda: copy(x), ratio))
    return found


class Compiled(NamedTuple):
    run: Callable[[], Any]
    memory: int  # bytes that the program needs beside its arguments and results


def compiled(function: Callable, *arguments: Any) -> Compiled:
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis()
    return Compiled(lambda: program(*arguments), 0 if memory is None else memory.temp_size_in_bytes)


def forward(layer: nnx.Module, x: jax.Array) -> Compiled:
    graph, state = nnx.split(layer)
    return compiled(lambda state, x: nnx.merge(graph, state, copy=True)(x), state, x)


def gradient(layer: nnx.Module, x: jax.Array, weights: jax.Array) -> Compiled:
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def run(params: Any, x: jax.Array, weights: jax.Array) -> Any:
        def loss(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            layer = nnx.merge(graph, params, rest, copy=True)
            y = layer(x)
            return jnp.vdot(y, weights.astype(y.dtype)), nnx.state(layer, nnx.BatchStat)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)

    return compiled(run, params, x, weights)


def distances() -> list[Pair]:
    """The earth mover distance of all features in one call, beside a loop over SciPy."""
    x, y = jax.random.normal(jax.random.key(1), (2, 4096, 128))
    host = np.asarray(x), np.asarray(y)
    ours = jax.jit(jaxnorm.shift.emd_1d)

    def peer() -> list[float]:
        pairs = zip(*(sample.T for sample in host), strict=True)
        return [scipy.stats.wasserstein_distance(a, b) for a, b in pairs]

    return [Pair("emd_1d (4096,128) / scipy", lambda: ours(x, y), peer)]


if __name__ == "__main__":
    tyro.cli(main)
