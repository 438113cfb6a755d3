"""Train networks with eight normalizers on three small tasks, and measure shifts of outputs.

Networks of one task and seed start from the same weights and see the same batches. Shifts are exact
earth mover distances of three layers' outputs for held-out images or texts. The layers normalize by
statistics of the whole training set, so only changes of the weights cause a shift. The outputs of
normalizers differ in scale. Therefore a shift is divided by the square root of the sum of the
features' variances.
"""

import pydoc_data.topics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from experiments.data import datasets
from experiments.measures import provenance
from jaxnorm import bounded, models
from jaxnorm.nnx import (
    BatchNorm,
    BatchRenorm,
    Derf,
    DyT,
    UnitizedBatchNorm,
    layer_outputs,
    recalibrate,
)
from jaxnorm.shift import (
    LayerBounds,
    derf_bounds,
    dyt_bounds,
    emd,
    layer_norm_bounds,
    rms_norm_bounds,
    sharp_moment_upper_bound,
)

Outputs = dict[str, Float[Array, "n *features"]]
Norm = Callable[..., Any]

RATE = 3e-3  # The learning rate of Adam.
MOMENTUM = 0.9  # The momentum of running statistics.
PROBE = 300  # The number of test samples whose outputs are measured.
FROZEN = 20  # The number of batches that update the running averages while the weights are frozen.
CONTEXT, TOKENS = 32, 128  # The length of a text, and the number of ASCII characters.


class Task(NamedTuple):
    """A task: its data, its network, and the layers that are measured."""

    build: Callable[..., Any]
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    layers: tuple[str, ...]
    epochs: int
    batch_size: int = 128


class ConvNet(nnx.Module):
    """A network with three 3×3 convolutions, normalization, ReLU, pixel means and a dense layer."""

    def __init__(self, *, norm: Norm, rngs: nnx.Rngs):
        widths, he_normal = (1, 16, 32, 32), nnx.initializers.he_normal()
        self.convs = nnx.List(
            nnx.Linear(9 * a, b, kernel_init=he_normal, rngs=rngs) for a, b in pairwise(widths)
        )
        self.head = nnx.Linear(32, 10, rngs=rngs)
        self.norms = nnx.List([norm(width, rngs=rngs) for width in widths[1:]])

    def __call__(self, x: Float[Array, "n h w 1"]) -> Float[Array, "n classes"]:
        for conv, norm, stride in zip(self.convs, self.norms, (2, 2, 1), strict=True):
            x = nnx.relu(norm(conv(_patches(x, stride))))
        return self.head(x.mean((1, 2)))


def _patches(x: Float[Array, "n h w c"], stride: int) -> Float[Array, "n h2 w2 c9"]:
    """Every 3×3 patch of each image as a vector.

    On a CPU, a product of patches and a matrix is many times faster than XLA's convolution.
    """
    _, h, w, _ = x.shape
    x = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    corners = product(range(3), range(3))
    return jnp.concatenate([x[:, i : i + h : stride, j : j + w : stride] for i, j in corners], -1)


class Reader(nnx.Module):
    """A causal transformer of two blocks over characters.

    Each residual branch begins with a normalizer.
    """

    def __init__(self, *, norm: Norm, rngs: nnx.Rngs):
        width = 32
        self.embed = nnx.Embed(TOKENS, width, rngs=rngs)
        self.position = nnx.Embed(CONTEXT, width, rngs=rngs)
        self.attention = nnx.List(
            nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs) for _ in range(2)
        )
        self.up = nnx.List(nnx.Linear(width, 4 * width, rngs=rngs) for _ in range(2))
        self.down = nnx.List(nnx.Linear(4 * width, width, rngs=rngs) for _ in range(2))
        self.head = nnx.Linear(width, TOKENS, rngs=rngs)
        self.norms = nnx.List([norm(width, rngs=rngs) for _ in range(5)])

    def __call__(self, tokens: Int[Array, "n t"]) -> Float[Array, "n t vocabulary"]:
        x = self.embed(tokens) + self.position(jnp.arange(CONTEXT))[None]
        mask = nnx.make_causal_mask(tokens)
        for i in range(2):
            x = x + self.attention[i](self.norms[2 * i](x), mask=mask)
            x = x + self.down[i](nnx.relu(self.up[i](self.norms[2 * i + 1](x))))
        return self.head(self.norms[4](x))


def _unitized(per_pixel: bool, num_features: int, *, rngs: nnx.Rngs, **options: Any) -> Norm:
    # With `pixels` equal to the number of features, unitization does not change the outputs' scale.
    return UnitizedBatchNorm(
        num_features,
        pixels=num_features,
        per_pixel=per_pixel,
        momentum=MOMENTUM,
        rngs=rngs,
        **options,
    )


def _bounded_factor(alpha: Array, square: Array) -> Array:
    """The factor of the unitization paper's Equation 9; alpha is clipped to [0.1, 1]."""
    return bounded(jnp.clip(alpha, 0.1, 1), square)


def norms(*, per_pixel: bool) -> dict[str, Norm]:
    """For each normalizer's name, a constructor of its layers.

    With `per_pixel`, unitized layers divide each pixel or token by its own norm. Without
    `per_pixel`, unitized layers divide all values of an image or text by one norm.
    """
    half = nnx.initializers.constant(0.5)
    return {
        "batch norm": partial(BatchNorm, momentum=MOMENTUM),
        "unitized": partial(_unitized, per_pixel),
        "unitized, bounded": partial(_unitized, per_pixel, factor=_bounded_factor, alpha_init=half),
        "layer norm": nnx.LayerNorm,
        "RMS norm": nnx.RMSNorm,
        "DyT": DyT,
        "Derf": Derf,
        "batch renorm": partial(BatchRenorm, momentum=MOMENTUM),
    }


NORMS = tuple(norms(per_pixel=False))
TASKS = ("MNIST, dense", "Fashion-MNIST, convolutions", "characters, transformer")


@cache
def task(name: str, data_dir: Path | None, size: int) -> Task:
    """The task `name` with at most `size` training images, or with at most `size` / 4 texts."""
    if name == TASKS[2]:
        return texts(size // 4)
    dense = name == TASKS[0]
    images = datasets.load("mnist" if dense else "fashion_mnist", data_dir)
    parts = images.x_train[:size], images.y_train[:size], images.x_test[:2000], images.y_test[:2000]
    if dense:
        build = partial(models.MLP, inputs=784, widths=(100,) * 6, classes=10)
        return Task(build, *parts, ("norms.0", "norms.2", "norms.5"), epochs=5)
    return Task(ConvNet, *parts, ("norms.0", "norms.1", "norms.2"), epochs=5)


def texts(size: int) -> Task:
    """The task to predict each next character in texts from Python's manual.

    The interpreter includes the manual, so no file is needed.
    """
    topics = pydoc_data.topics.topics
    text = "".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    rows = len(codes) // (CONTEXT + 1)
    rows = codes[: rows * (CONTEXT + 1)].reshape(rows, CONTEXT + 1)
    rows = np.random.default_rng(0).permutation(rows)[: size + 500]
    x, y = rows[:, :-1], rows[:, 1:]
    layers = ("norms.0", "norms.2", "norms.4")
    return Task(Reader, x[500:], y[500:], x[:500], y[:500], layers, epochs=8, batch_size=32)


class Program(NamedTuple):
    """The compiled functions for one normalizer on one task; all seeds use the same functions.

    Attributes:
      init: A function that takes a key and returns the untrained state.
      step: A function that takes a state and a batch, as indices of training samples. The function
        returns the next state and the loss before the step.
      whole_set: A function that takes a state and returns a state with statistics of the whole
        training set.
      evaluate: A function that takes a state and returns the loss and the accuracy on the test set,
        with running averages.
      outputs: A function that takes a state and returns the outputs of the measured layers for the
        first test samples.
    """

    init: Callable[[Array], Any]
    step: Callable[[Any, Array], tuple[Any, Array]]
    whole_set: Callable[[Any], Any]
    evaluate: Callable[[Any], tuple[Array, Array]]
    outputs: Callable[[Any], Outputs]


def program(own: Task, norm: Norm) -> Program:
    """Make the compiled functions that train and measure networks of one normalizer and task."""
    optimizer = optax.adam(RATE)
    model = _new(own, norm)
    has_statistics = bool(jax.tree.leaves(nnx.state(model, nnx.BatchStat)))
    graph = nnx.graphdef(model)
    x_train, y_train = jnp.asarray(own.x_train), jnp.asarray(own.y_train)

    def init(key: Array) -> Any:
        model = _new(own, norm, key)
        if has_statistics:  # running averages start from the statistics of a thousand samples
            recalibrate(model, [x_train[:1000]])
        _, params, rest = nnx.split(model, nnx.Param, ...)
        return params, rest, optimizer.init(params)

    def loss(params: Any, rest: Any, x: Array, y: Array) -> tuple[Array, Any]:
        model = nnx.merge(graph, params, rest, copy=True)
        value = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
        return value, nnx.state(model, nnx.Not(nnx.Param))

    @jax.jit
    def step(x: Array, y: Array, state: Any, rows: Int[Array, " n"]) -> tuple[Any, Array]:
        params, rest, moments = state
        gradient_of = jax.value_and_grad(loss, has_aux=True)
        (value, rest), gradient = gradient_of(params, rest, x[rows], y[rows])
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), rest, moments), value

    in_inference = nnx.view(model, raise_if_not_found=False, use_running_average=True)
    evaluate, outputs, whole_set = _inference(own, nnx.graphdef(in_inference), has_statistics)
    return Program(init, partial(step, x_train, y_train), whole_set, evaluate, outputs)


def _inference(own: Task, graph: nnx.GraphDef, has_statistics: bool) -> tuple[Callable, ...]:
    """The functions `evaluate`, `outputs` and `whole_set` for a `Program`."""

    def network(state: Any) -> Any:
        return nnx.merge(graph, *state[:2], copy=True)

    @jax.jit
    def evaluate(x: Array, y: Array, state: Any) -> tuple[Array, Array]:
        logits = network(state)(x)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return value, jnp.mean(logits.argmax(-1) == y)

    @jax.jit
    def outputs(x: Array, state: Any) -> Outputs:
        found = layer_outputs(network(state), own.layers, x[:PROBE])
        # Only the last position of a text is measured, because only this position attends to all
        # other positions.
        return {k: y[:, -1] if x.dtype == jnp.int32 else y for k, y in found.items()}

    @jax.jit
    def whole_set(x: Array, state: Any) -> Any:
        model = network(state)
        if has_statistics:
            recalibrate(model, [x])
        return state[0], nnx.state(model, nnx.Not(nnx.Param))

    x_test, y_test = jnp.asarray(own.x_test), jnp.asarray(own.y_test)
    return (
        partial(evaluate, x_test, y_test),
        partial(outputs, x_test),
        partial(whole_set, jnp.asarray(own.x_train)),
    )


def _new(own: Task, norm: Norm, key: Array | None = None) -> Any:
    return own.build(norm=norm, rngs=nnx.Rngs(jax.random.key(0) if key is None else key))


def train(own: Task, ours: Program, normalizer: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one network, and yield the measurements after every epoch."""
    rng = np.random.default_rng(seed)
    state = ours.init(jax.random.key(seed))
    before = ours.whole_set(state)
    for _ in range(own.epochs):
        batches = _batches(rng, own)
        start = time.perf_counter()
        losses = []
        for rows in batches:
            state, value = ours.step(state, rows)
            losses.append(value)
        losses = np.asarray(losses)
        seconds = time.perf_counter() - start
        after, one_step = (ours.whole_set(s) for s in (state, ours.step(state, batches[0])[0]))
        frozen = state
        for rows in _batches(rng, own)[:FROZEN]:
            frozen = (state[0], *ours.step(frozen, rows)[0][1:])
        test_loss, accuracy = ours.evaluate(state)
        seen = [ours.outputs(s) for s in (before, after, one_step, state, frozen)]
        yield {
            "loss": [float(part.mean()) for part in np.array_split(losses, 4)],
            "test_loss": float(test_loss),
            "accuracy": float(accuracy),
            "seconds": seconds,
            "layers": {
                name: _measured(
                    normalizer,
                    [outputs[name] for outputs in seen],
                    [_layer(s, name) for s in (before, after)],
                )
                for name in own.layers
            },
        }
        before = after


def _batches(rng: np.random.Generator, own: Task) -> Int[Array, "k n"]:
    order = rng.permutation(len(own.x_train))
    steps = len(order) // own.batch_size
    return jnp.asarray(order[: steps * own.batch_size].reshape(steps, -1))


def _layer(state: Any, name: str) -> dict[str, Array]:
    """The parameters that the normalization layer `name` has in a state."""
    layers, index = name.split(".")
    return nnx.to_pure_dict(state[0])[layers][int(index)]


def _measured(
    normalizer: str, outputs: Sequence[Array], parameters: Sequence[Mapping[str, Array]]
) -> dict[str, float | None]:
    """Measure how far an epoch moves a layer's outputs, and bound this distance.

    `outputs` has five elements. The first three elements use statistics of the whole training set,
    and belong to three times: before the epoch, after the epoch, and after one more step. The last
    two elements use running averages. One belongs to the time after the epoch, and the other
    follows updates of the averages with frozen weights. The baseline is the distance between two
    halves of the measured samples; it shows the error that a small number of samples causes. The
    noise floor is the distance that changing running averages cause while weights are frozen.
    """
    x, y, z, running, frozen = (part.reshape(len(part), -1) for part in outputs)
    half = len(y) // 2
    return {
        "spread": float(jnp.sqrt(y.var(0).sum())),
        "epoch": emd(x, y),
        "step": emd(y, z),
        "baseline": emd(y[:half], y[half : 2 * half]),
        "floor": emd(running, frozen),
        "moment_bound": float(sharp_moment_upper_bound(x.mean(0), x.var(0), y.mean(0), y.var(0))),
        "certificate": certificate(normalizer, outputs[0].shape, *parameters),
    }


def certificate(
    normalizer: str, shape: tuple[int, ...], before: Mapping[str, Array], after: Mapping[str, Array]
) -> float | None:
    """The upper bound M + M′ + ‖β − β′‖ on the distance in an epoch, or None without such a bound.

    β is the bias before the epoch, and β′ is the bias after the epoch. M and M′ are the largest
    norms that the outputs of a sample without bias can have before and after the epoch.

    If a sample consists of P vectors, M, M′ and ‖β − β′‖ are √P times their values for one vector.
    """
    pixels = int(np.prod(shape[1:-1]))

    def radius(own: Mapping[str, Array]) -> Float[Array, ""]:
        scale = own["scale"]
        if normalizer == "unitized, bounded":
            # Samples have c channels and P pixels. If the option `pixels` is c, the norm of a
            # normalized sample is at most √(P c)/α.
            return scale.size**0.5 * jnp.max(jnp.abs(scale) / jnp.clip(own["alpha"], 0.1, 1))
        found: dict[str, Callable[[], LayerBounds]] = {
            "layer norm": lambda: layer_norm_bounds(scale),
            "RMS norm": lambda: rms_norm_bounds(scale),
            "DyT": lambda: dyt_bounds(own["alpha"], scale),
            "Derf": lambda: derf_bounds(own["alpha"], scale),
        }
        return found[normalizer]().radius

    if normalizer in ("batch norm", "unitized", "batch renorm"):
        return None
    of_biases = jnp.linalg.norm(before["bias"] - after["bias"]) if "bias" in before else 0.0
    return float(pixels**0.5 * (radius(before) + radius(after) + of_biases))


def runs(seeds: int) -> Iterator[tuple[str, str, int]]:
    """Yield the task, the normalizer and the seed of every run, one task and seed after another."""
    for seed in range(seeds):
        for name in TASKS:
            for normalizer in NORMS:
                yield name, normalizer, seed


@cache
def _program(name: str, normalizer: str, data_dir: Path | None, size: int) -> Program:
    own = task(name, data_dir, size)
    return program(own, norms(per_pixel=name == TASKS[2])[normalizer])


def measure(
    name: str, normalizer: str, seed: int, data_dir: Path | None, size: int
) -> dict[str, Any]:
    """Train one network; return its task, normalizer and seed, and measurements of every epoch."""
    own = task(name, data_dir, size)
    lines = list(train(own, _program(name, normalizer, data_dir, size), normalizer, seed))
    return {"task": name, "normalizer": normalizer, "seed": seed, "epochs": lines}


def settings(seeds: int, size: int) -> dict[str, Any]:
    return {
        "size": size,
        "seeds": seeds,
        "probe": PROBE,
        "learning_rate": RATE,
        "momentum": MOMENTUM,
        "frozen_batches": FROZEN,
        "tasks": TASKS,
        "normalizers": NORMS,
    }


def fingerprint(size: int, data_dir: Path | None) -> str:
    """A hash of the arguments, the code, the libraries' versions and the processor type."""
    code = [Path(__file__), *provenance.code()]
    return provenance.digest([size, str(data_dir)], code)[:12]
