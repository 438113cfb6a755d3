"""Two sets of samples in pairs, and critics that are trained to separate the two sets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from jaxnorm.internal import check_key, check_whole, replicate
from jaxnorm.shift._samples import check_pair


class Pairs(NamedTuple):
    """Two sets of samples; row i of both sets comes from the same input."""

    x: Array
    y: Array

    def difference(self, f: Callable[[Array], Array], batch_size: int) -> Float[Array, "*values"]:
        """The mean of `f` over x minus the mean of `f` over y, computed in minibatches."""

        def mean(samples: Array) -> Array:
            values = jax.lax.map(lambda z: f(z[None])[0], samples, batch_size=batch_size)
            return values.mean(0)

        return mean(self.x) - mean(self.y)


def train_and_test_pairs(
    x_train: Array, y_train: Array, x_test: Array, y_test: Array
) -> tuple[Pairs, Pairs]:
    """The training pairs and the test pairs, checked and replicated on all devices."""
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        check_pair(x, y, names=(f"x_{part}", f"y_{part}"))
        if len(x) != len(y):
            raise ValueError(
                f"x_{part} and y_{part} must have equally many samples, because they form pairs; "
                f"got {len(x)} and {len(y)}"
            )
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "x_train and x_test must have the same features; "
            f"got {x_train.shape[1:]} and {x_test.shape[1:]}"
        )
    x_train, y_train, x_test, y_test = (
        replicate(jnp.asarray(x)) for x in (x_train, y_train, x_test, y_test)
    )
    return Pairs(x_train, y_train), Pairs(x_test, y_test)


def train(
    critic: Callable[[Any, Array], Array],
    params: Any,
    key: Key[Array, ""],
    pairs: Pairs,
    *,
    project: Callable[[Any], Any],
    optimizer: optax.GradientTransformation,
    steps: int,
    batch_size: int,
) -> Any:
    """The parameters after `steps` ascent steps on E f(x) − E f(y); `project` follows each step."""
    check_key(key)
    check_whole(steps=steps, batch_size=batch_size)
    if steps < 1 or batch_size < 1:
        raise ValueError(
            f"steps and batch_size must be positive; got steps {steps} and batch_size {batch_size}"
        )

    def loss(params: Any, x: Array, y: Array) -> Array:
        return critic(params, y).mean() - critic(params, x).mean()

    def step(state: tuple[Any, Any], key: Key[Array, ""]) -> tuple[tuple[Any, Any], None]:
        params, moments = state
        index = jax.random.randint(key, (batch_size,), 0, len(pairs.x))
        gradient = jax.grad(loss)(params, pairs.x[index], pairs.y[index])
        # optax computes integer powers of floats, which raise an error under strict dtype promotion
        with jax.numpy_dtype_promotion("standard"):
            updates, moments = optimizer.update(gradient, moments, params)
        return (project(optax.apply_updates(params, updates)), moments), None

    state = params, optimizer.init(params)
    return jax.lax.scan(step, state, jax.random.split(key, steps))[0][0]
