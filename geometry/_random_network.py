"""A batch on its way through the random layers of a deep network."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from geometry._angles import gram
from jaxnorm import recenter
from jaxnorm._statistics import widen


class RandomNetwork(NamedTuple):
    """A batch after every random layer; the true batch is exp(log_scale) times the one kept.

    Attributes:
      statistics: The statistic of the batch kept after each layer, on a new leading axis.
      log_scale: Logarithm of its true scale, after each layer.
      x: The batch kept after the last layer.
    """

    statistics: PyTree[Array]
    log_scale: Float[Array, " depth"]
    x: Float[Array, "n width"]


def random_network(
    key: Key[Array, ""],
    x: Float[Array, "n k"],
    *,
    depth: int,
    width: int,
    normalization: Callable[[Array], Array] = recenter,
    nonlinearity: Callable[[Array], Array] = jax.nn.relu,
    statistic: Callable[[Array], PyTree[Array]] = gram,
) -> RandomNetwork:
    """Send `x` through `depth` layers x ← nonlinearity(normalization(x W)), W of variance 2/width.

    The setting of Figures 3, 5 and 6 of Nachum et al. Weights are drawn as they are needed and
    never kept. The batch kept is divided by its root mean squared norm after every layer, so that
    nothing under- or overflows: with a homogeneous normalization and nonlinearity this only moves
    a factor into `log_scale`. A batch that has become zero stays zero.

    Args:
      key: Of the weights.
      x: The batch, samples in rows.
      depth: Number of layers, at least 1.
      width: Neurons of each.
      normalization: Acts on (n, width). `jaxnorm.recenter` by default and the identity are
        homogeneous; after `jaxnorm.standardize` or `rescale_rms` angles are right too, but
        `log_scale` is not the scale of the batch.
      nonlinearity: Homogeneous, as ReLU is: f(c x) = c f(x) for c > 0.
      statistic: What is kept of every layer, by default the Gram matrix.

    Raises:
      ValueError: `depth` or `width` is below 1.
    """
    if depth < 1 or width < 1:
        raise ValueError(f"depth and width must be at least 1; got {depth} and {width}")

    def layer(x: Array, log_scale: Array, key: Array) -> tuple[Array, Array]:
        w = jax.random.normal(key, (x.shape[1], width), x.dtype) * (2 / width) ** 0.5
        z = jnp.einsum("nk,kd->nd", x, w, precision="highest")
        return _divide_by_scale(nonlinearity(normalization(z)), log_scale)

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], PyTree[Array]]:
        h, log_scale = layer(*carry, key)
        return (h, log_scale), (statistic(h), log_scale)

    h, log_scale = _divide_by_scale(widen(x), jnp.zeros((), widen(x).dtype))
    keys = jax.random.split(key, depth)
    # The first layer has its own number of inputs; all others share one shape and one scan.
    first = step((h, log_scale), keys[0])
    carry, rest = jax.lax.scan(step, first[0], keys[1:])
    kept = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first[1], rest)
    return RandomNetwork(kept[0], kept[1], carry[0])


def _divide_by_scale(x: Array, log_scale: Array) -> tuple[Array, Array]:
    """`x` at root mean squared norm 1, and the logarithm of the factor that restores it."""
    largest = jnp.max(jnp.abs(x))
    safe = jnp.where(largest > 0, largest, 1)
    h = x / safe
    square = jnp.where(largest > 0, jnp.square(h).sum() / len(x), 1)
    return h * jax.lax.rsqrt(square), log_scale + jnp.log(safe) + jnp.log(square) / 2
