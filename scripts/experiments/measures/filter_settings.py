"""The training settings of the pruning paper's Table 3, adapted to a small network, and variants.

The base setting has ReLU, batch norm, He's normal initialization, weight decay 5e-4, and 300 steps
of SGD with momentum. The learning rate is divided by 10 after 150 steps and again after 225 steps.
Every other setting changes one part of the base setting.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.nn import initializers
from jaxtyping import Array, Float, Key

from experiments.measures.filter_training import RATE, Averaged, Batch, Setting, drops, l2, momentum

SQUARE, MIXED = 3, 4  # the sides in pixels of the squares of Cutout and of CutMix


def l1(strength: float) -> Callable[[list[Array]], Any]:
    return lambda kernels: strength * sum(jnp.abs(w).sum() for w in kernels)


def random_relu(key: Key[Array, ""], h: Array) -> Array:
    """RReLU: negative values are divided by a number drawn from U(3, 8), Xu et al. (2015)."""
    return jnp.where(h > 0, h, h / jax.random.uniform(key, h.shape, minval=3.0, maxval=8.0))


def drop(key: Key[Array, ""], h: Array) -> Array:
    """ReLU that drops a fifth of the values in training, in place of the paper's Dropact."""
    return jnp.where(jax.random.bernoulli(key, 0.8, h.shape), jax.nn.relu(h) / 0.8, 0)


def square(key: Key[Array, ""], shape: tuple[int, ...], side: int) -> Float[Array, "n h w 1"]:
    """Masks that are 1 inside a square at a random place, and 0 outside the square."""
    places = jnp.array([[n - side + 1 for n in shape[1:3]]])
    corners = jax.random.randint(key, (shape[0], 2), 0, places)
    inside = [
        (jnp.arange(shape[1 + axis])[None] >= corners[:, axis, None])
        & (jnp.arange(shape[1 + axis])[None] < corners[:, axis, None] + side)
        for axis in (0, 1)
    ]
    return (inside[0][:, :, None, None] & inside[1][:, None, :, None]).astype(jnp.float32)


def cutout(key: Key[Array, ""], batch: Batch) -> Batch:
    """Set a square of each image to 0 (Cutout of DeVries and Taylor (2017))."""
    x, y = batch
    return x * (1 - square(key, x.shape, SQUARE)), y


def cutmix(key: Key[Array, ""], batch: Batch) -> Batch:
    """Apply CutMix, Yun et al. (2019), with squares of one size.

    CutMix replaces a square of each image by the same square of another image, and mixes both
    labels.
    """
    x, y = batch
    hole, share = square(key, x.shape, MIXED), MIXED**2 / x[0].size
    return x * (1 - hole) + x[::-1] * hole, (1 - share) * y + share * y[::-1]


def averaged(steps: int) -> optax.GradientTransformation:
    """SGD that stores in its state the mean of the parameters over the second half of the steps."""
    inner = optax.sgd(RATE)

    def init(params: Any) -> Averaged:
        return Averaged(inner.init(params), params, jnp.int32(0))

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Averaged]:
        updates, inner_state = inner.update(gradient, state.inner, params)
        n = jnp.maximum(state.step + 1 - steps // 2, 1)
        average = jax.tree.map(lambda m, p, u: m + (p + u - m) / n, state.mean, params, updates)
        return updates, Averaged(inner_state, average, state.step + 1)

    return optax.GradientTransformation(init, cast(Any, update))


def settings() -> dict[str, Setting]:
    """The base setting and all settings that differ from it, with their names as keys."""
    groups = (_starts, _optimizers, _regularizations, _rates, _sizes)
    found = [Setting(), *(setting for group in groups for setting in group())]
    return {setting.name: setting for setting in found}


def _starts() -> Iterator[Setting]:
    scaling = initializers.variance_scaling
    starts = {
        "Kaiming uniform": scaling(2.0, "fan_in", "uniform"),
        "Xavier normal": scaling(1.0, "fan_avg", "normal"),
        "Xavier uniform": scaling(1.0, "fan_avg", "uniform"),
        "orthogonal": initializers.orthogonal(),
        "Kaiming truncated normal": initializers.he_normal(),
        "a tenth of Kaiming normal": scaling(0.02, "fan_in", "normal"),
    }
    for name, initializer in starts.items():
        yield Setting("initialization", name, initializer=initializer)


def _optimizers() -> Iterator[Setting]:
    optimizers = {
        "SGD": lambda steps: optax.sgd(2 * RATE),
        "ASGD": averaged,
        "Adam": lambda steps: optax.adam(3e-3),
        "Adagrad": lambda steps: optax.adagrad(0.05),
        "Adamax": lambda steps: optax.adamax(5e-3),
        "Adadelta": lambda steps: optax.adadelta(1.0),
        "AdamW": lambda steps: optax.adamw(3e-3, weight_decay=0.1),
        "RMSprop": lambda steps: optax.rmsprop(1e-3),
        "Lion": lambda steps: optax.lion(5e-4),
    }
    for name, optimizer in optimizers.items():
        yield Setting("optimizer", name, optimizer=optimizer)


def _regularizations() -> Iterator[Setting]:
    for strength in (1e-4, 1e-3):
        yield Setting("regularization", f"L1 {strength:g}", penalty=l1(strength))
    for strength in (0.0, 1e-3, 1e-2):
        yield Setting("regularization", f"L2 {strength:g}", penalty=l2(strength))
    yield Setting("regularization", "RReLU", activation=random_relu)
    yield Setting("regularization", "dropout of activations", activation=drop)
    yield Setting("regularization", "Cutout", augment=cutout)
    yield Setting("regularization", "CutMix", augment=cutmix)
    yield Setting("regularization", "without batch norm", is_normalized=False)


def _rates() -> Iterator[Setting]:
    yield Setting("learning rate", "82-164 of 200", optimizer=momentum(drops(0.41, 0.82)))
    yield Setting("learning rate", "60-120 of 160", optimizer=momentum(drops(0.375, 0.75)))
    yield Setting("learning rate", "cosine", optimizer=momentum(_cosine))
    yield Setting("learning rate", "constant", optimizer=momentum(drops()))
    for factor in (0.2, 4.0):
        rate = factor * RATE
        optimizer = momentum(lambda steps, rate=rate: optax.constant_schedule(rate))
        yield Setting("learning rate", f"constant {rate:g}", optimizer=optimizer)
    for batch in (16, 256):
        yield Setting("learning rate", f"batches of {batch}", batch=batch)


def _cosine(steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(RATE, steps)


def _sizes() -> Iterator[Setting]:
    for width in (8, 16, 64):
        yield Setting("width", f"{width} filters", width=width)
    for depth in (2, 4, 6):
        yield Setting("depth", f"{depth} convolutions", depth=depth)
    for steps in (30, 100, 1000):
        yield Setting("length", f"{steps} steps", steps=steps)
