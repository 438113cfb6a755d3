"""Times of `tree_gram`, random networks, Monte Carlo, and maps of infinitely wide layers.

The times of random networks and of Monte Carlo are compared with the times of their slowest
operations alone.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import geometry
from experiments.benchmarks.timing import Pair, compiled

WIDTH, BATCH, LAYERS = 512, 128, 20
POINTS, DEPTH, TREES, SHORTER = 64, 10_000, 256, 500
# the number of layers of a map, and the number of samples of a Gram matrix
MAPPED, SAMPLES = 10_000, 16
DRAWS, DRAWS_PER_KEY = 2**23, 1024
GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def groups() -> dict[str, Callable[[], list[Pair]]]:
    return {
        f"random networks of {LAYERS} layers with {WIDTH} neurons, {BATCH} samples": networks,
        f"recentering trees of {POINTS} samples": trees,
        f"Monte Carlo: mean and variance of {DRAWS:,} normal numbers": draws,
    }


def map_groups() -> dict[str, Callable[[], list[Pair]]]:
    return {"maps of ReLU at infinite width": maps}


def networks() -> list[Pair]:
    """Pairs to time random networks, with weights from each of JAX's random generators.

    The function to compare with draws the same weights and computes one matrix product for each
    layer. The last pairs compare only the times in which the generators draw the weights.
    """
    x = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
    keys = {name: jax.random.key(0, impl=name) for name in GENERATORS}

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5

    @jax.jit
    def ours(key: jax.Array) -> jax.Array:
        return geometry.random_network(key, x, depth=LAYERS, width=WIDTH, layers=(LAYERS,)).x

    @jax.jit
    def peer(key: jax.Array) -> jax.Array:
        def layer(h: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            return jnp.matmul(h, draw(key), precision="highest"), None

        return jax.lax.scan(layer, x, jax.random.split(key, LAYERS))[0]

    @jax.jit
    def weights(key: jax.Array) -> jax.Array:
        def layer(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            return total + draw(key), None

        return jax.lax.scan(layer, jnp.zeros((WIDTH, WIDTH)), jax.random.split(key, LAYERS))[0]

    default = keys[GENERATORS[0]]
    return [
        Pair(f"network, {name} / draws and products", lambda k=key: ours(k), lambda k=key: peer(k))
        for name, key in keys.items()
    ] + [
        Pair(f"weights, {name} / threefry2x32", lambda k=key: weights(k), lambda: weights(default))
        for name, key in keys.items()
    ]


def trees() -> list[Pair]:
    """Pairs to time `tree_gram` at one large depth, compared with brute force at depth 14.

    The second pair compares `tree_gram` under vmap, for many batches at a smaller depth, with
    `tree_gram` for one batch at the large depth.
    """
    points = jnp.asarray(np.random.default_rng(0).normal(size=(TREES, POINTS)), jnp.float32)
    one = jax.jit(lambda x: geometry.tree_gram(x, DEPTH))
    many = jax.jit(jax.vmap(lambda x: geometry.tree_gram(x, SHORTER)))

    @jax.jit
    def brute_force(x: jax.Array) -> jax.Array:
        return geometry.gram(geometry.tree.neurons(x, depth=14))

    deep = f"tree of depth {DEPTH:,}"
    return [
        Pair(
            f"{deep} / brute force of depth 14",
            lambda: one(points[0]),
            lambda: brute_force(points[0]),
        ),
        Pair(
            f"{TREES} trees of depth {SHORTER} / {deep}",
            lambda: many(points),
            lambda: one(points[0]),
        ),
    ]


def maps() -> list[Pair]:
    """Pairs to time the maps that accept any activation, for ReLU, and ReLU's closed form.

    The first pair maps one cosine through many layers. The second pair maps a Gram matrix through
    one layer.
    """
    relu = jax.jit(geometry.mean_field.kernel_map, static_argnums=(0, 1))(jax.nn.relu, (0.0,))

    def repeat(step: Callable[[jax.Array], jax.Array], x: jax.Array, layers: int) -> jax.Array:
        return jax.lax.fori_loop(0, layers, lambda _, x: step(x), x)

    def batch(gram: jax.Array) -> jax.Array:
        after = geometry.mean_field.activation_step(gram, jax.nn.relu, (0.0,), terms=64)
        return 2 * after

    series = jax.jit(lambda x: repeat(relu, x, MAPPED))
    closed = jax.jit(lambda x: repeat(geometry.mean_field.cosine_step, x, MAPPED))
    layer = compiled(batch, jnp.eye(SAMPLES))
    exact = compiled(geometry.arccosine_kernel, jnp.eye(SAMPLES))
    start = jnp.asarray(0.3)
    return [
        Pair(
            f"kernel_map, {MAPPED:,} layers / cosine_step",
            lambda: series(start),
            lambda: closed(start),
        ),
        Pair(
            f"activation_step, one layer, {SAMPLES} samples / arccosine_kernel",
            layer.run,
            exact.run,
            memory=layer.memory / exact.memory,
        ),
    ]


def draws() -> list[Pair]:
    """Pairs to time `monte_carlo_moments`, compared with only drawing the random numbers."""
    key = jax.random.key(0)

    @jax.jit
    def peer() -> jax.Array:
        return jax.random.normal(key, (DRAWS,))

    def many(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (DRAWS_PER_KEY,))

    return [
        Pair(
            "monte_carlo_moments, one number per key / jax.random.normal",
            lambda: geometry.sampling.monte_carlo_moments(jax.random.normal, key, DRAWS)[:4],
            peer,
            runs=10,
        ),
        Pair(
            f"monte_carlo_moments, {DRAWS_PER_KEY} numbers per key / jax.random.normal",
            lambda: geometry.sampling.monte_carlo_moments(
                many, key, DRAWS, draws_per_key=DRAWS_PER_KEY
            )[:4],
            peer,
            runs=10,
        ),
    ]
