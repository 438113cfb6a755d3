"""Speed against Flax and SciPy, as ratios of times taken alternately in one process.

    python scripts/bench.py            # about a minute on 2 cores

Every pair is compiled and warmed up first; the two are then timed in turn, and the ratio is that of
the medians, with the quartiles of the ratios of neighbours. Below 1, ours is faster.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
import tyro
from flax import nnx
from rich.console import Console
from rich.progress import track
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


def main(runs: int = 15) -> None:
    """Time our functions beside their peers and print one table.

    Args:
      runs: Timed runs of each side, after warming up; at least 3.
    """
    if runs < 3:
        raise SystemExit(f"--runs must be at least 3; got {runs}")
    table = Table(title=f"{jax.devices()[0].device_kind}, float32, {runs} runs a side")
    for column in ("what", "ours, ms", "peer, ms", "ratio", "quartiles"):
        table.add_column(column, justify="left" if column == "what" else "right")
    rows = [*layers(), *distances()]
    for name, ours, peer in track(rows, description="timing", console=Console(stderr=True)):
        a, b = alternately(ours, peer, runs)
        low, high = np.quantile(a / b, (0.25, 0.75))
        ratio = np.median(a) / np.median(b)
        table.add_row(
            name,
            f"{1e3 * np.median(a):.2f}",
            f"{1e3 * np.median(b):.2f}",
            f"{ratio:.2f}",
            f"{low:.2f} to {high:.2f}",
        )
    Console().print(table)


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


def layers() -> list[tuple[str, Callable, Callable]]:
    """Forward and gradient with respect to input and parameters, in training."""
    rows = []
    for shape in SHAPES:
        x, cotangent = jax.random.normal(jax.random.key(0), (2, *shape))
        theirs = gradient(nnx.BatchNorm(shape[-1], rngs=nnx.Rngs(0)), x, cotangent)
        for name in ("BatchNorm", "UnitizedBatchNorm"):
            ours = gradient(getattr(jaxnorm.nnx, name)(shape[-1], rngs=nnx.Rngs(0)), x, cotangent)
            rows.append((f"{name} {str(shape).replace(' ', '')} / flax", ours, theirs))
    return rows


def gradient(layer: nnx.Module, x: jax.Array, cotangent: jax.Array) -> Callable[[], Any]:
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    @jax.jit
    def run(params: Any, x: jax.Array, cotangent: jax.Array) -> Any:
        def loss(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            layer = nnx.merge(graph, params, rest, copy=True)
            return jnp.vdot(layer(x), cotangent), nnx.state(layer, nnx.BatchStat)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)

    return lambda: run(params, x, cotangent)


def distances() -> list[tuple[str, Callable, Callable]]:
    """The earth mover distance of all features in one call, beside a loop over SciPy."""
    x, y = jax.random.normal(jax.random.key(1), (2, 4096, 128))
    host = np.asarray(x), np.asarray(y)
    ours = jax.jit(jaxnorm.shift.emd_1d)

    def peer() -> list[float]:
        pairs = zip(*(sample.T for sample in host), strict=True)
        return [scipy.stats.wasserstein_distance(a, b) for a, b in pairs]

    return [("emd_1d (4096, 128) / scipy", lambda: ours(x, y), peer)]


if __name__ == "__main__":
    tyro.cli(main)
