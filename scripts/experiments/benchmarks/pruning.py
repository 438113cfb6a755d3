"""Time the pruning criteria on VGG-16's layers, and VGG-16 with half of its channels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.spatial.distance
import scipy.stats
from flax import nnx

import pruning
from experiments.benchmarks.halves import evaluation
from experiments.benchmarks.timing import Pair, torch_on_all_cores
from jaxnorm import models

VGG16 = (
    (64, 27),
    (64, 576),
    (128, 576),
    (128, 1152),
    (256, 1152),
    *[(256, 2304)] * 2,
    (512, 2304),
    *[(512, 4608)] * 5,
)
BATCH = 32


def groups() -> dict[str, Callable[[], list[Pair]]]:
    return {
        "scores of all filters in VGG-16's 13 convolutions": criteria,
        "distance between the weights of a layer and a Gaussian": distance,
        "VGG-16 at 32×32 with half of all channels, compared with the whole network": halved,
    }


def drawn() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in VGG16]


def criteria() -> list[Pair]:
    """Pairs that compare all four criteria with PyTorch, and with one matrix product per layer.

    The matrix product is V Vᵀ, where V has the layer's filters as rows. The criterion GM alone is
    also compared with SciPy's cdist in float64.
    """
    host = drawn()
    layers = jax.device_put(host)
    ours = jax.jit(partial(jax.tree.map, pruning.criteria.scores))
    gm = jax.jit(lambda layers: [pruning.gm(v) for v in layers])
    gram = jax.jit(lambda layers: [v @ v.T for v in layers])

    def cdist() -> list[np.ndarray]:
        wide = (v.astype(np.float64) for v in host)
        return [scipy.spatial.distance.cdist(v, v).sum(1) for v in wide]

    pairs = [
        Pair("four criteria / Gram matrices", lambda: ours(layers), lambda: gram(layers)),
        Pair("gm / SciPy cdist", lambda: gm(layers), cdist),
    ]
    peer = pytorch(host)
    if peer is None:
        return pairs
    return [Pair("four criteria / PyTorch", lambda: ours(layers), peer), *pairs]


def pytorch(host: list[np.ndarray]) -> Callable[[], list[Any]] | None:
    """A function that computes the criteria's scores in PyTorch, or None if PyTorch cannot run.

    Weiszfeld's iteration for the geometric median ends when a step is at most 10⁻⁶ times the norm
    of the result, or after 100 steps.
    """
    torch = torch_on_all_cores("four criteria / PyTorch")
    if torch is None:
        return None
    layers = [torch.from_numpy(v) for v in host]

    def median(v: Any) -> Any:
        x = v.mean(0)
        for _ in range(100):
            inverse = 1 / torch.linalg.norm(v - x, dim=1)
            step = (inverse[:, None] * v).sum(0) / inverse.sum()
            settled = torch.linalg.norm(step - x) <= 1e-6 * torch.linalg.norm(step)
            x = step
            if settled:
                break
        return x

    def scores() -> list[Any]:
        return [
            (
                v.abs().sum(1),
                torch.linalg.norm(v, dim=1),
                torch.cdist(v, v).sum(1),
                torch.linalg.norm(v - median(v), dim=1),
            )
            for v in layers
        ]

    return scores


def distance() -> list[Pair]:
    x = np.random.default_rng(0).standard_normal((512, 4608), np.float32)
    ours, on_device = jax.jit(pruning.weight_tests.ks_distance), jax.device_put(x)

    def peer() -> Any:
        scale = np.sqrt(np.mean(np.square(x, dtype=np.float64)))
        return scipy.stats.kstest(x.ravel() / scale, "norm", method="asymp")

    return [Pair("ks_distance (512,4608) / SciPy kstest", lambda: ours(on_device), peer)]


def halved() -> list[Pair]:
    """Pairs to time VGG-16 with half of the channels, compared with the whole VGG-16.

    The ideal ratio of times is the ratio of the multiply-accumulates.
    """
    apply, state = evaluation(models.VGG(16, classes=10, hidden=(), rngs=nnx.Rngs(0)))
    image = jnp.zeros((1, 32, 32, 3), jnp.float32)
    half = pruning.prune(apply, state, image, ratios=[0.5], fold=False).params
    ideal = pruning.cost(apply, half, image).macs / pruning.cost(apply, state, image).macs
    run = jax.jit(apply)
    x = jax.random.normal(jax.random.key(0), (BATCH, 32, 32, 3), jnp.float32)
    name = f"half / whole, batch {BATCH}, ideal {ideal:.3f}"
    return [Pair(name, lambda: run(half, x), lambda: run(state, x))]
