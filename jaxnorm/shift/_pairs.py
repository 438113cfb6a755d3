"""Pairs of samples, and parameters trained to tell their two sides apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from jaxnorm._numerics import promote_to_float32
from jaxnorm._sharding import replicated
from jaxnorm.shift._samples import check_pair

Outputs = Callable[[Array], Array]


class Pairs(NamedTuple):
    """Samples of which row i of both sides belongs together, and how they become outputs."""

    x: Array
    y: Array
    outputs: tuple[Outputs, Outputs]

    @property
    def output(self) -> jax.ShapeDtypeStruct:
        """Shape of the outputs of one sample, and the precision in which they are judged."""
        return jax.eval_shape(lambda z: promote_to_float32(self.outputs[0](z)), self.x[:1])

    def swapped(self) -> "Pairs":
        return Pairs(self.y, self.x, (self.outputs[1], self.outputs[0]))

    def minibatch(self, index: Int[Array, " n"]) -> tuple[Array, Array]:
        return self.outputs[0](self.x[index]), self.outputs[1](self.y[index])

    def means(self, f: Outputs, batch_size: int) -> tuple[Array, Array]:
        """Means of `f` over the outputs of each side, of which a minibatch exists at a time."""

        def mean(samples: Array, outputs: Outputs) -> Array:
            values = jax.lax.map(lambda z: f(outputs(z[None]))[0], samples, batch_size=batch_size)
            return values.mean(0)

        return mean(self.x, self.outputs[0]), mean(self.y, self.outputs[1])

    def difference(self, f: Outputs, batch_size: int) -> Float[Array, "*values"]:
        return jnp.subtract(*self.means(f, batch_size))


def pairs_of(x: Array, y: Array, outputs: tuple[Outputs, Outputs] | None) -> Pairs:
    check_pair(x, y)
    if len(x) != len(y):
        raise ValueError(f"samples must be pairs, as many x as y; got {len(x)} and {len(y)}")
    return Pairs(replicated(x), replicated(y), (_itself, _itself) if outputs is None else outputs)


def trained(
    value: Callable[[Any, Array], Array],
    params: Any,
    key: Key[Array, ""],
    pairs: Pairs,
    project: Callable[[Any], Any],
    optimizer: optax.GradientTransformation,
    steps: int,
    batch_size: int,
) -> Any:
    """Parameters after `steps` of ascent on E f(x) − E f(y), each followed by `project`."""
    if steps < 1 or batch_size < 1:
        raise ValueError(f"steps and batch_size must be positive; got {steps} and {batch_size}")

    def loss(params: Any, x: Array, y: Array) -> Array:
        return value(params, y).mean() - value(params, x).mean()

    def step(state: tuple[Any, Any], key: Key[Array, ""]) -> tuple[tuple[Any, Any], None]:
        params, moments = state
        index = jax.random.randint(key, (batch_size,), 0, len(pairs.x))
        gradient = jax.grad(loss)(params, *pairs.minibatch(index))
        with jax.numpy_dtype_promotion("standard"):  # optax takes powers by integers
            updates, moments = optimizer.update(gradient, moments, params)
        return (project(optax.apply_updates(params, updates)), moments), None

    state = params, optimizer.init(params)
    return jax.lax.scan(step, state, jax.random.split(key, steps))[0][0]


def _itself(z: Array) -> Array:
    return z
