"""Show that recalibration on images that differ from the training images harms a network.

The network is an unpruned ResNet-20 that other people trained on CIFAR-10's original pixels. The
new statistics of the network come from training images that were recompressed as JPEG.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.measures.repair_images import correct, images, network, recalibrated

Mix = Callable[[int, Any, Any], None]


def run(weights: Path, data_dir: Path, count: int, tested: int) -> dict[str, Any]:
    """The accuracies after all or some statistics are recomputed from `count` training images."""
    graph, tree = network(weights)
    train, _ = images(data_dir, "train", 0, count)
    test = images(data_dir, "test", 0, tested)
    parts = np.array_split(train, 4)
    fresh = recalibrated(graph, tree, [(x,) for x in parts])
    rng = np.random.default_rng(0)
    trees = {
        "as trained": tree,
        "recalibrated": fresh,
        "recalibrated on crops and flips": recalibrated(
            graph, tree, [(augment(rng, x),) for x in parts]
        ),
        "means alone": mix_statistics(graph, tree, fresh, means),
        "variances alone": mix_statistics(graph, tree, fresh, variances),
        "stem alone": mix_statistics(graph, tree, fresh, stem),
        "halfway": mix_statistics(graph, tree, fresh, halfway),
    }
    found = {name: correct(graph, t, test) for name, t in trees.items()}
    before = found["as trained"].astype(float)
    return {
        "data": "CIFAR-10, JPEG-recompressed; the network was trained on the original pixels.",
        "accuracy": {name: float(c.mean()) for name, c in found.items()},
        "standard error of the difference": {
            name: float((c - before).std(ddof=1) / len(c) ** 0.5) for name, c in found.items()
        },
        "median ratio of deviations": [
            float(np.median(np.sqrt(b.var[...] / a.var[...])))
            for a, b in zip(*(norms(nnx.merge(graph, t)) for t in (tree, fresh)), strict=True)
        ],
    }


def augment(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Augment images by random crops, after adding 4 pixels of value 0 on each side.

    Each crop is flipped with probability 1/2.
    """
    padded = np.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    starts = rng.integers(0, 9, (len(x), 2))
    crops = np.stack([p[i : i + 32, j : j + 32] for p, (i, j) in zip(padded, starts, strict=True)])
    flips = rng.random((len(x), 1, 1, 1)) < 0.5
    return np.where(flips, crops[:, :, ::-1], crops)


def norms(model: Any) -> list[Any]:
    """The batch norms of a ResNet-20, in the order of the layers."""
    return [model.stem_norm, *(n for block in model.blocks for n in (block.norm1, block.norm2))]


def mix_statistics(graph: Any, tree: Any, fresh: Any, mix: Mix) -> Any:
    """A copy of the network after `mix(i, old, new)` has changed the statistics of each norm.

    `old` is norm number i of the copy, and `new` is the same norm with the statistics of new
    images.
    """
    model = nnx.merge(graph, jax.tree.map(jnp.copy, tree))
    for i, (a, b) in enumerate(zip(norms(model), norms(nnx.merge(graph, fresh)), strict=True)):
        mix(i, a, b)
    return nnx.state(model)


def means(i: int, a: Any, b: Any) -> None:
    a.mean[...] = b.mean[...]


def variances(i: int, a: Any, b: Any) -> None:
    a.var[...] = b.var[...]


def stem(i: int, a: Any, b: Any) -> None:
    if i == 0:
        a.mean[...], a.var[...] = b.mean[...], b.var[...]


def halfway(i: int, a: Any, b: Any) -> None:
    a.mean[...], a.var[...] = (a.mean[...] + b.mean[...]) / 2, (a.var[...] + b.var[...]) / 2
