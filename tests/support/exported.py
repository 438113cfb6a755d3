"""A small network with batch norm in each framework, as a function of arrays and images."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from pruning.channels import widths

WIDTH, SIDE, CLASSES = 8, 6, 3


class Network(NamedTuple):
    apply: Callable[..., jax.Array]
    params: Any
    x: jax.Array


def images() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (3, SIDE, SIDE, 2), "float32")


def drawn(tree: Any) -> Any:
    """The tree with random vectors, because initial statistics are only zeros and ones."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> Any:
        if leaf.ndim != 1:
            return leaf
        return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), leaf.dtype)

    return jax.tree.map(draw, tree)


def of_nnx() -> Network:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.conv = nnx.Conv(2, WIDTH, (3, 3), use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)
            self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))

    graph, state = nnx.split(Net(nnx.Rngs(0)))
    return Network(lambda state, x: nnx.merge(graph, state)(x), drawn(state), images())


class LinenNet(linen.Module):
    width: int = WIDTH

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Conv(self.width, (3, 3), name="conv")(x)
        x = linen.BatchNorm(use_running_average=True)(x)
        return linen.Dense(CLASSES)(linen.relu(x).mean((1, 2)))


def of_linen() -> Network:
    def apply(variables: Any, x: jax.Array) -> Any:
        return LinenNet(widths(variables)["params/conv"]).apply(variables, x)

    return Network(apply, drawn(LinenNet().init(jax.random.key(0), images())), images())


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        first, second = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(2, WIDTH, 3, key=first, dtype="float32")
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", mode="batch", dtype="float32")
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=second, dtype="float32")

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> jax.Array:
        h, _ = self.norm(self.conv(x.transpose(2, 0, 1)), state, inference=True)
        return self.head(jax.nn.relu(h).mean((1, 2)))


def of_equinox() -> Network:
    both = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(0))
    arrays, static = eqx.partition(both, eqx.is_array)

    def apply(arrays: Any, x: jax.Array) -> jax.Array:
        model, state = eqx.combine(arrays, static)
        return jax.vmap(lambda image: model(image, state), axis_name="batch")(x)

    return Network(apply, drawn(arrays), images())


FRAMEWORKS = {"flax.nnx": of_nnx, "flax.linen": of_linen, "Equinox": of_equinox}
