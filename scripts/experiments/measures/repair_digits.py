"""Prune networks that are trained on digits, and repair them without gradient steps.

The networks are a perceptron and a small convolutional network, both with batch norm. For every
seed, criterion and ratio, the test accuracy is measured after each repair. All repairs that need
images use the same training images. Two methods use no criterion: merging by clusters, and the
greedy choice of channels.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import pruning
from experiments.data import datasets
from pruning.channels import (
    least_squares,
    merge_channels,
    reconstruction_scores,
    rescale,
    transport,
)

SEEDS, RATIOS, EPOCHS, BATCH = 3, (0.3, 0.5), 20, 64
WIDTHS = {"perceptron": (64, 128, 128), "convolutional": (1, 16, 32, 32)}
Tree = dict[str, dict[str, jax.Array]]


def init(key: jax.Array, name: str) -> Tree:
    """The initial parameters and statistics of normalized layers and a last dense layer."""
    tree, widths = {}, WIDTHS[name]
    window = () if name == "perceptron" else (3, 3)
    keys = jax.random.split(key, len(widths))
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        gain = (2 / (n * np.prod(window))) ** 0.5
        kernel = gain * jax.random.normal(keys[i], (*window, n, m))
        zeros, ones = jnp.zeros(m), jnp.ones(m)
        norm = {"scale": ones, "bias": zeros, "mean": zeros, "var": ones}
        tree[f"layer{i}"] = {"kernel": kernel, **norm}
    head = jax.random.normal(keys[-1], (widths[-1], 10)) * widths[-1] ** -0.5
    return tree | {"head": {"kernel": head, "bias": jnp.zeros(10)}}


def logits(tree: Tree, x: jax.Array, fresh: bool = False) -> tuple[jax.Array, Tree]:
    """The logits of a batch, and a copy of the network's arrays with the batch's statistics.

    All layers normalize by the statistics of the batch if `fresh` is true, and otherwise by the
    statistics in `tree`.
    """
    tree = dict(tree)
    for name in sorted(set(tree) - {"head"}):
        layer = tree[name]
        if layer["kernel"].ndim == 2:
            x = x.reshape(len(x), -1) @ layer["kernel"]
        else:
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=numbers
            )
        axes = tuple(range(x.ndim - 1))
        tree[name] = layer | {"mean": x.mean(axes), "var": x.var(axes)}
        used = tree[name] if fresh else layer
        gain = layer["scale"] / jnp.sqrt(used["var"] + 1e-5)
        x = jax.nn.relu((x - used["mean"]) * gain + layer["bias"])
    x = x if x.ndim == 2 else x.mean((1, 2))
    return x @ tree["head"]["kernel"] + tree["head"]["bias"], tree


def apply(tree: Tree, x: jax.Array) -> jax.Array:
    return logits(tree, x)[0]


def train(tree: Tree, x: np.ndarray, y: np.ndarray, epochs: int, rate: float) -> Tree:
    """Train a network's arrays by Adam, then recompute its statistics on the training images."""
    rng = np.random.default_rng(0)
    rows = [rng.permutation(len(x))[: len(x) // BATCH * BATCH] for _ in range(epochs)]
    order = np.concatenate(rows).reshape(-1, BATCH)
    tree = training(len(order), rate)(tree, jnp.asarray(x), jnp.asarray(y), order)
    return recalibrated(tree, x)


@cache
def training(steps: int, rate: float) -> Callable[..., Tree]:
    """A function that trains a network's arrays by Adam; each row of indices gives one batch."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def loss(tree: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        out = logits(tree, x, fresh=True)[0]
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

    @jax.jit
    def step(carry: Any, x: jax.Array, y: jax.Array) -> Any:
        tree, state = carry
        updates, state = optimizer.update(jax.grad(loss)(tree, x, y), state)
        return optax.apply_updates(tree, updates), state

    def run(tree: Tree, x: jax.Array, y: jax.Array, order: np.ndarray) -> Tree:
        carry = tree, optimizer.init(tree)
        for rows in order:  # a scan is not used, because XLA's CPU convolutions are slow inside it
            carry = step(carry, x[rows], y[rows])
        return carry[0]

    return run


@jax.jit
def recalibrated(tree: Tree, x: Any) -> Tree:
    return logits(tree, x, fresh=True)[1]


Makers = dict[str, Callable[[], Any]]


def parts(x: np.ndarray) -> list[tuple[np.ndarray]]:
    return [(part,) for part in np.split(x[: len(x) // 8 * 8], 8)]


def repairs(x: np.ndarray, y: np.ndarray, prune: Callable[..., Any]) -> Makers:
    """For each repair, a function that prunes the network by a criterion and repairs it."""
    batches = parts(x)
    transported = partial(merge_channels, inputs=(x[:2],), plan=transport)
    folded = cache(lambda: prune().params)
    return {
        "folded": folded,
        "recalibrated": lambda: recalibrated(folded(), x),
        "merged, transport": lambda: prune(repair=transported).params,
        "scaled": lambda: prune(repair=partial(rescale, batches=batches)).params,
        "least squares": lambda: prune(repair=partial(least_squares, batches=batches)).params,
        "fine-tuned, one epoch": lambda: train(recalibrated(folded(), x), x, y, 1, 1e-3),
    }


def choices(x: np.ndarray, prune: Callable[..., Any]) -> Makers:
    """For each method that selects channels without a criterion, a function that prunes so."""
    batches = parts(x)
    greedy = partial(prune, score=partial(reconstruction_scores, apply=apply, batches=batches))
    merged = cache(lambda: prune(repair=partial(merge_channels, inputs=(x[:2],))).params)
    return {
        "merged, clusters": merged,
        "merged, clusters, recalibrated": lambda: recalibrated(merged(), x),
        "greedy, recalibrated": lambda: recalibrated(greedy().params, x),
        "greedy, least squares": lambda: (
            greedy(repair=partial(least_squares, batches=batches)).params
        ),
    }


def timed(makers: Makers) -> Iterator[tuple[str, Any, float]]:
    """Yield each network's name, its arrays, and the seconds that their computation took."""
    for name, make in makers.items():
        start = time.perf_counter()
        tree = jax.block_until_ready(make())
        yield name, tree, time.perf_counter() - start


def run(save: Callable[[dict[str, Any]], None]) -> None:
    """Measure every network, seed, ratio and criterion, and save the results after each network."""
    images = datasets.load("digits")
    x, y = images.x_train, images.y_train
    found: dict[str, Any] = {
        "data": images.note,
        "settings": {"epochs": EPOCHS, "batch": BATCH},
        "whole": [],
        "rows": [],
    }

    def accuracy(tree: Tree) -> float:
        return float((apply(tree, jnp.asarray(images.x_test)).argmax(1) == images.y_test).mean())

    for name, seed in itertools.product(WIDTHS, range(SEEDS)):
        tree = train(init(jax.random.key(seed), name), x, y, EPOCHS, 3e-3)
        network = {"network": name, "seed": seed}
        found["whole"].append(network | {"accuracy": accuracy(tree)})
        for ratio, criterion in itertools.product(RATIOS, [*pruning.CRITERIA, "none"]):
            prune = partial(pruning.prune, apply, tree, x[:2], ratios=[ratio])
            if criterion in pruning.CRITERIA:
                function = pruning.CRITERIA[criterion]
                score = partial(pruning.channels.channel_scores, criterion=function)
                makers = repairs(x, y, partial(prune, score=score))
            else:
                makers = choices(x, prune)
            for repair, small, seconds in timed(makers):
                row = network | {"ratio": ratio, "criterion": criterion, "repair": repair}
                found["rows"].append(row | {"seconds": seconds, "accuracy": accuracy(small)})
        save(found)
