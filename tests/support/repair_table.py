"""A trained ResNet-20 pruned on CIFAR-10 and repaired: docs/results/repair/resnet20.json.

    python tests/support/repair_table.py --weights resnet20.safetensors --data-dir tfds

The weights have PyTorch's names, the folder CIFAR-10 in tensorflow-datasets' format. Every
criterion, ratio and repair starts from the same network; all repairs see the same images.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "scripts")]

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow_datasets as tfds
from flax import nnx
from safetensors.numpy import load_file

import pruning
from experiments.cli import environment
from jaxnorm.models import CifarResNet
from jaxnorm.nnx import recalibrate
from pruning.channels import least_squares

OUT = Path(__file__).parents[2] / "docs/results/repair"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Correct = np.ndarray  # by test image, whether its class is found


def main() -> None:
    given = options()
    graph, tree = network(load_file(given.weights))
    train, test = images(given)
    apply = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    batches = [(x,) for x in np.split(train[0], len(train[0]) // given.batch)]
    rows: list[dict[str, Any]] = []
    results = {
        "command": f"python tests/support/repair_table.py {described(given)}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "options": {k: v for k, v in vars(given).items() if k not in ("weights", "data_dir")},
        "data": "CIFAR-10, JPEG-recompressed: accuracies are below those on the original pixels.",
        "whole": [int(c) for c in correct(apply, tree, test)],
        "whole, recalibrated": [
            int(c) for c in correct(apply, recalibrated(graph, tree, batches), test)
        ],
        "rows": rows,
    }
    print(f"whole {np.mean(results['whole']):.3f}", flush=True)
    print(f"recalibrated {np.mean(results['whole, recalibrated']):.3f}", flush=True)
    for ratio in given.ratios:
        for criterion in given.criteria:
            for name, tree_of, seconds in trees(
                graph, apply, tree, train, batches, ratio, criterion
            ):
                found = correct(apply, tree_of, test)
                row = {"ratio": ratio, "criterion": criterion, "repair": name, "seconds": seconds}
                rows.append(row | {"correct": [int(c) for c in found]})
                print(
                    f"{ratio} {criterion:7}{name:28}{found.mean():.3f} {seconds:.0f} s", flush=True
                )
                OUT.mkdir(parents=True, exist_ok=True)
                (OUT / given.out).write_text(json.dumps(results) + "\n", encoding="utf-8")


def trees(
    graph: Any,
    apply: Callable[..., Any],
    tree: Any,
    train: tuple[np.ndarray, np.ndarray],
    batches: list[tuple[np.ndarray]],
    ratio: float,
    criterion: str,
) -> Iterator[tuple[str, Any, float]]:
    """The network pruned and repaired in every way, and the seconds of each."""
    score = partial(pruning.channels.channel_scores, criterion=pruning.CRITERIA[criterion])
    x = batches[0][0][:1]  # the stem is excluded, and with it the residual stream

    def pruned(**options: Any) -> Any:
        return pruning.prune(
            apply, tree, x, ratios=[ratio], score=score, exclude=["stem"], **options
        ).params

    def timed(name: str, make: Callable[[], Any]) -> tuple[str, Any, float]:
        start = time.perf_counter()
        made = jax.block_until_ready(make())
        return name, made, time.perf_counter() - start

    fresh = partial(recalibrated, graph, batches=batches)
    folded = timed("folded", pruned)
    again = timed("recalibrated", lambda: fresh(folded[1]))
    yield again
    solved = timed("least squares", lambda: pruned(repair=partial(least_squares, batches=batches)))
    yield solved
    yield timed("least squares, recalibrated", lambda: fresh(solved[1]))
    yield timed("fine-tuned, one epoch", lambda: fresh(fine_tuned(graph, again[1], train, 25)))


def network(weights: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The network of PyTorch's weights: its definition and its arrays."""
    whole = CifarResNet(20, classes=10, rngs=nnx.Rngs(0))
    model: Any = nnx.view(whole, use_running_average=True)
    assign(model.stem, model.stem_norm, weights, "conv1", "bn1")
    for k, block in enumerate(model.blocks):
        name = f"layer{k // 3 + 1}.{k % 3}"
        assign(block.conv1, block.norm1, weights, f"{name}.conv1", f"{name}.bn1")
        assign(block.conv2, block.norm2, weights, f"{name}.conv2", f"{name}.bn2")
    model.head.kernel[...] = jnp.asarray(weights["linear.weight"].T)
    model.head.bias[...] = jnp.asarray(weights["linear.bias"])
    return nnx.split(model)


def assign(conv: Any, norm: Any, weights: dict[str, np.ndarray], first: str, second: str) -> None:
    conv.kernel[...] = jnp.asarray(weights[f"{first}.weight"].transpose(2, 3, 1, 0))
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(norm, ours)[...] = jnp.asarray(weights[f"{second}.{theirs}"])


def images(given: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test images as the network takes them, and their labels."""
    splits = tfds.data_source("cifar10", data_dir=given.data_dir, split=["train", "test"])
    parts = []
    starts = (given.seed * given.images, 0)
    for split, start, count in zip(splits, starts, (given.images, given.test), strict=True):
        examples = [split[i] for i in range(start, start + count)]
        x = np.stack([e["image"] for e in examples]).astype("float32") / 255
        x = (x - np.array(MEAN, "float32")) / np.array(DEVIATION, "float32")
        parts.append((x, np.array([e["label"] for e in examples])))
    return parts


def correct(apply: Callable[..., Any], tree: Any, test: tuple[np.ndarray, np.ndarray]) -> Correct:
    x, labels = test
    return np.concatenate([apply(tree, part).argmax(1) for part in np.split(x, 4)]) == labels


def recalibrated(graph: Any, tree: Any, batches: list[tuple[np.ndarray]]) -> Any:
    model = nnx.merge(graph, tree, copy=True)
    recalibrate(model, [jnp.asarray(x) for (x,) in batches])
    return nnx.state(model)


def fine_tuned(graph: Any, tree: Any, train: tuple[np.ndarray, np.ndarray], batch: int) -> Any:
    """One epoch of stochastic gradient descent with momentum over the same images."""
    model = nnx.view(nnx.merge(graph, tree, copy=True), use_running_average=False)
    optimizer = nnx.Optimizer(model, optax.sgd(0.001, momentum=0.9), wrt=nnx.Param)

    def loss(model: nnx.Module, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    @nnx.jit
    def step(model: nnx.Module, optimizer: Any, x: Any, y: Any) -> None:
        optimizer.update(model, nnx.grad(loss)(model, x, y))

    x, y = train
    for i in range(0, len(x), batch):
        step(model, optimizer, x[i : i + batch], y[i : i + batch])
    return nnx.state(nnx.view(model, use_running_average=True))


def described(given: argparse.Namespace) -> str:
    words = [f"--weights {Path(given.weights).name} --data-dir tfds"]
    words += [f"--{name} {getattr(given, name)}" for name in ("images", "test", "batch", "seed")]
    words += [f"--ratios {' '.join(map(str, given.ratios))}"]
    return " ".join([*words, f"--criteria {' '.join(given.criteria)}"])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data-dir", required=True)
    for name, value in (("images", 1000), ("test", 1000), ("batch", 125), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5])
    parser.add_argument("--criteria", nargs="+", default=list(pruning.CRITERIA))
    parser.add_argument("--out", default="resnet20.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
