"""Measure Figure 2 of Nachum et al.: how accuracy and rank of networks depend on depth.

There are four kinds of networks. All have width 128 and `hl` + 1 hidden layers. Two of the four
kinds have no batch norm: one kind starts from PyTorch's default weights, and one kind starts from
He et al.'s weights. As in the paper, both are trained by SGD, and the third kind has batch norm and
is trained by Adam. The paper does not have the fourth kind, "batch_norm_sgd", which has batch norm
and is trained by SGD. Ranks are measured on the last hidden layer for the first batch, before
training. Accuracies are measured on 1,000 training samples, after training.

Deep networks with batch norm learn. Deep networks without batch norm learn if they start from He et
al.'s weights, but not if they start from PyTorch's default weights. The rank is 128 at all depths
only in networks with batch norm.
"""

import itertools
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import geometry
from experiments.data import datasets
from experiments.measures.finished import Finished
from experiments.training.scan import scan_steps
from jaxnorm import standardize

WIDTH, BATCH, CLASSES, SAMPLES = 128, 128, 10, 1000
STARTS = ("default", "he", "batch_norm", "batch_norm_sgd")
NORMALIZED = ("batch_norm", "batch_norm_sgd")
FULL = {"depths": tuple(range(0, 33, 2)), "steps": 35_100, "runs": 3}
TENTH = FULL | {"steps": 3510, "runs": 5}
SHORT = {"depths": (0, 4, 8, 16, 32), "steps": 1000, "runs": 2}
RECIPES = {"short": SHORT, "tenth": TENTH, "full": FULL}


class Params(NamedTuple):
    """The kernels and biases of a network; the first axis of `hidden` is the layer."""

    first: tuple[Array, Array]
    hidden: tuple[Array, Array]
    last: tuple[Array, Array]


def init(key: Array, start: str, inputs: int, hl: int) -> Params:
    """Draw the weights and biases of a network with `hl` + 1 hidden layers.

    If `start` is "default", weights and biases have the distribution U(±1/√fan-in), as by default
    in PyTorch. If `start` is "he", weights have the distribution N(0, 2/fan-in) of He et al., and
    biases are zero. Networks with batch norm have PyTorch's default weights, and zero biases.
    """

    def layer(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        kernel, bias = jax.random.split(key)
        limit = shape[-2] ** -0.5
        if start == "he":
            w = jax.random.normal(kernel, shape) * (2 / shape[-2]) ** 0.5
            return w, jnp.zeros((*shape[:-2], shape[-1]))
        w = jax.random.uniform(kernel, shape, minval=-limit, maxval=limit)
        b = jax.random.uniform(bias, (*shape[:-2], shape[-1]), minval=-limit, maxval=limit)
        return w, b if start == "default" else jnp.zeros_like(b)

    keys = jax.random.split(key, 3)
    shapes = (inputs, WIDTH), (hl, WIDTH, WIDTH), (WIDTH, CLASSES)
    return Params(*map(layer, keys, shapes))


def forward(params: Params, x: Float[Array, "n d"], start: str) -> tuple[Array, Array]:
    """The logits of a batch, and the outputs of the last hidden layer.

    Batch norm uses the statistics of the batch, also in evaluation.
    """

    def hidden(h: Array, layer: tuple[Array, Array]) -> tuple[Array, None]:
        z = h @ layer[0]
        # The batch norm here divides by the unbiased deviation, without epsilon, and has no gain.
        if start in NORMALIZED:
            z = standardize(z) * ((len(z) - 1) / len(z)) ** 0.5
        else:
            z = z + layer[1][None]
        return jax.nn.relu(z), None

    h, _ = hidden(x, params.first)
    h, _ = jax.lax.scan(hidden, h, params.hidden)
    return h @ params.last[0] + params.last[1][None], h


def loss(params: Params, x: Array, y: Int[Array, " n"], start: str) -> Float[Array, ""]:
    """The mean cross entropy of the logits."""
    logits, _ = forward(params, x, start)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def optimizer(start: str, hl: int) -> optax.GradientTransformation:
    """SGD at rate 0.01 or, if `start` is "batch_norm", Adam at the rates in the authors' code."""
    if start != "batch_norm":
        return optax.sgd(0.01)
    rates = {30: 0.0005, 22: 0.005, 8: 0.05, 0: 0.01}
    return optax.adam(next(rate for min_layers, rate in rates.items() if hl >= min_layers))


@partial(jax.jit, static_argnames=("start", "hl", "steps"))
def run(
    key: Array, x: Array, y: Array, *, start: str, hl: int, steps: int
) -> tuple[Array, Array, Array]:
    """The accuracy after training, and two ranks of the last hidden layer before training.

    The two ranks are the numerical rank and the effective rank.
    """
    weights, batches, sample = jax.random.split(key, 3)
    params = init(weights, start, x.shape[1], hl)
    optimize = optimizer(start, hl)

    def draw(key: Array, size: int) -> tuple[Array, Array]:
        index = jax.random.randint(key, (size,), 0, len(x))
        return x[index], y[index]

    keys = jax.random.split(batches, steps)
    _, last = forward(params, draw(keys[0], BATCH)[0], start)

    def batch_loss(params: Params, key: Array) -> Float[Array, ""]:
        return loss(params, *draw(key, BATCH), start)

    params, _ = scan_steps(batch_loss, optimize, params, optimize.init(params), keys)
    images, labels = draw(sample, SAMPLES)
    accuracy = jnp.mean(forward(params, images, start)[0].argmax(1) == labels)
    return accuracy, geometry.numerical_rank(last), geometry.effective_rank(last)


def measure(
    images: datasets.Images,
    depths: tuple[int, ...],
    steps: int,
    runs: int,
    *,
    path: Path | None = None,
) -> dict[str, dict[str, list]]:
    """For each kind of network, nested lists (depths, runs) of accuracies and of two ranks.

    Args:
      images: The training images of all networks.
      depths: The numbers `hl`; a network has `hl` + 1 hidden layers.
      steps: Number of training steps.
      runs: Number of networks for each kind and depth.
      path: A file for finished networks; an interrupted run resumes after the networks in this
        file.
    """
    x = images.x_train.reshape(len(images.x_train), -1)
    # The loader's standardization is undone, because the paper's pixels lie in [0, 1].
    x = jnp.asarray((x - x.min()) / (x.max() - x.min()))
    y = jnp.asarray(images.y_train)
    done = Finished(path, [datasets.identity(images), steps], [Path(__file__)])
    # The loop over runs is outermost, so every finished run has a result for each start and depth.
    for i, start, hl in itertools.product(range(runs), STARTS, depths):
        if (name := f"{start}-{hl}-{i}") not in done.parts:
            row = run(
                jax.random.fold_in(jax.random.key(0), i), x, y, start=start, hl=hl, steps=steps
            )
            done.add(name, [float(part) for part in row])
    results: dict[str, dict[str, list]] = {}
    for start in STARTS:
        table = np.array([[done.parts[f"{start}-{hl}-{i}"] for i in range(runs)] for hl in depths])
        names = ("accuracy", "rank", "effective_rank")
        results[start] = {name: table[..., i].tolist() for i, name in enumerate(names)}
    return results
