"""Times of our earth mover distances, compared with SciPy and, if installed, ott-jax."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable

import jax
import numpy as np
import scipy.stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import jaxnorm
from experiments.benchmarks.timing import Pair
from experiments.cli import say

FEATURES = (4096, 512)
JOINT, LARGE = (1024, 3072), (4096, 3072)
WITHOUT_OTT = "ott-jax is not installed: pip install ott-jax, for its row"


def groups() -> dict[str, Callable[[], list[Pair]]]:
    """For each table's title, the callable that makes the table's pairs of functions to time."""
    return {
        "earth mover distances of features": features,
        "earth mover distance of joint outputs": joint,
    }


def features() -> list[Pair]:
    """Pairs to time `emd_1d`, which computes a distance for each feature, and its gradients.

    The time of the distances is compared with the time of a loop that calls SciPy's function for
    each feature. The time of the gradients is compared with the time of the distances. If ott-jax
    is installed, the times of distances and gradients are also compared with ott-jax's times under
    vmap.
    """
    x, y = jax.random.normal(jax.random.key(1), (2, *FEATURES))
    ours = jax.jit(jaxnorm.shift.emd_1d)

    def total(x: jax.Array, y: jax.Array) -> jax.Array:
        return jaxnorm.shift.emd_1d(x, y).sum()

    gradient, gradients = jax.jit(jax.grad(total)), jax.jit(jax.grad(total, (0, 1)))
    host = np.asarray(x), np.asarray(y)

    def scipys() -> list[float]:
        pairs = zip(*(sample.T for sample in host), strict=True)
        return [scipy.stats.wasserstein_distance(a, b) for a, b in pairs]

    label = str(FEATURES).replace(" ", "")
    pairs = [
        Pair(f"emd_1d {label} / scipy", lambda: ours(x, y), scipys, runs=5),
        Pair(
            f"gradients of emd_1d by both samples {label} / emd_1d",
            lambda: gradients(x, y),
            lambda: ours(x, y),
            runs=5,
        ),
    ]
    if (otts := ott_quantiles()) is None:
        say(WITHOUT_OTT)
        return pairs
    otts_gradient = jax.jit(jax.grad(lambda x, y: otts(x, y).sum()))
    return [
        *pairs,
        Pair(f"emd_1d {label} / ott-jax", lambda: ours(x, y), lambda: otts(x, y), runs=5),
        Pair(
            f"gradient of emd_1d {label} / ott-jax",
            lambda: gradient(x, y),
            lambda: otts_gradient(x, y),
            runs=5,
        ),
    ]


def ott_quantiles() -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """ott-jax's exact solver in one dimension, vmapped over features; None without ott-jax."""
    if importlib.util.find_spec("ott") is None:
        return None
    from ott.geometry import costs, pointcloud  # pyright: ignore[reportMissingImports]
    from ott.problems.linear import linear_problem  # pyright: ignore[reportMissingImports]
    from ott.solvers.linear import univariate  # pyright: ignore[reportMissingImports]

    def distance(a: jax.Array, b: jax.Array) -> jax.Array:
        geometry = pointcloud.PointCloud(a[:, None], b[:, None], cost_fn=costs.PNormP(1.0))
        return univariate.quantile_solver(linear_problem.LinearProblem(geometry)).ot_costs[0]

    return jax.jit(jax.vmap(distance, in_axes=1))


def joint() -> list[Pair]:
    """A pair to time the exact distance between joint distributions, compared with SciPy.

    The function also runs `emd` once on samples of shape `LARGE`, and prints its time and memory.
    """
    x, y = jax.random.normal(jax.random.key(2), (2, *JOINT))

    def scipys() -> float:
        cost = cdist(np.asarray(x), np.asarray(y))
        return float(cost[linear_sum_assignment(cost)].mean())

    seconds, gigabytes = full_size()
    say(f"emd {LARGE}, once: {seconds:.1f} s, {gigabytes:.2f} GB")
    label = f"emd {str(JOINT).replace(' ', '')} / scipy"
    return [Pair(label, lambda: jaxnorm.shift.emd(x, y), scipys, runs=5)]


def full_size() -> tuple[float, float]:
    """Run `emd` once in a new Linux process; return its seconds and its added memory in GB."""
    program = f"""
import time
from pathlib import Path
import numpy as np
import jaxnorm
x, y = np.random.default_rng(0).normal(size=(2, *{LARGE})).astype(np.float32)
jaxnorm.shift.emd(x[:2], y[:2])
def kilobytes(of):
    return int(Path("/proc/self/status").read_text().split(of + ":")[1].split()[0])
before, start = kilobytes("VmRSS"), time.perf_counter()
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
jaxnorm.shift.emd(x, y)
print(time.perf_counter() - start, (kilobytes("VmHWM") - before) / 1e6)
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, gigabytes = map(float, printed.split())
    return seconds, gigabytes
