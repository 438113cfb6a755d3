"""Computes batches in deep random networks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from geometry._angles import gram, rows_times
from geometry._arguments import as_samples
from jaxnorm import recenter
from jaxnorm.internal import (
    auto_sharded,
    check_flags,
    check_function,
    check_key,
    check_whole,
    replicate,
    unit_of,
    varying_like,
)


class RandomNetwork(NamedTuple):
    """A scaled batch after the layers of a network; the true batch is exp(log_scale) times larger.

    Attributes:
      statistics: The result of `statistic` for the scaled batch. The new first axis numbers the
        recorded layers.
      log_scale: After each recorded layer, the logarithm of the number by which the scaled batch
        must be multiplied to get the true batch.
      x: The scaled batch after the last layer.
    """

    statistics: PyTree[Array]
    log_scale: Float[Array, " layers"]
    x: Float[Array, "n width"]


def random_network(
    key: Key[Array, ""],
    x: Float[Array, "n k"],
    *,
    depth: int,
    width: int,
    normalization: Callable[[Array], Array] = recenter,
    nonlinearity: Callable[[Array], Array] = jax.nn.relu,
    homogeneous: bool = True,
    statistic: Callable[[Array], PyTree[Array]] = gram,
    layers: Sequence[int] | None = None,
) -> RandomNetwork:
    """Apply `depth` layers x ← nonlinearity(normalization(x W)) to `x`, with W of variance 2/width.

    Figures 3, 5 and 6 of Nachum et al. show networks with such layers. Weights are drawn when they
    are needed and not stored, so only the recorded statistics need memory that grows with depth. On
    a CPU, drawing weights takes most of the time. Therefore the time depends on the random
    generator of `key`. To run many networks, use `vmap` over keys. A zero batch remains zero. If
    the samples of `x` are sharded over devices, the batch remains sharded, and the recorded
    statistics are replicated on all devices.

    Args:
      key: Random key of the weights.
      x: The batch, with samples in rows.
      depth: Number of layers, at least 1.
      width: Number of neurons of each layer.
      normalization: A function of an array (n, width): `jaxnorm.recenter`, `rescale` (about the
        mean), `rescale_rms` (about zero), `standardize` (both parts), or the identity.
      nonlinearity: A function of the normalized batch, such as ReLU.
      homogeneous: Whether a layer maps c x to c times its output for x, as with ReLU and no
        rescaling. If true, the batch is divided by its root mean squared norm before the first
        layer and after every layer, so no number underflows or overflows. `log_scale` is the
        logarithm of the product of all divisors. If false, the batch is not scaled and `log_scale`
        is 0.
      statistic: Any function of the scaled batch that returns an array or a tree of arrays to
        record.
      layers: The numbers of the layers after which the statistic is recorded, in ascending order
        and between 1 and `depth`; by default all layers.

    Raises:
      TypeError: `normalization`, `nonlinearity` or `statistic` is not a function, `key` is not a
        random key, or `depth` or `width` is not an `int`.
      ValueError: `x` is not a matrix of finite numbers, `depth` or `width` is below 1 or at least
        2³¹, or `layers` is not in ascending order or not between 1 and `depth`.

    Example:
      >>> net = random_network(
      ...     jax.random.key(0), jnp.eye(8), depth=200, width=32, layers=(1, 10, 200)
      ... )
      >>> net.statistics.shape, bool(jnp.isfinite(net.log_scale).all())
      ((3, 8, 8), True)
    """
    check_key(key)
    check_whole(depth=depth, width=width)
    check_function(normalization, "normalization", "jaxnorm.standardize")
    check_function(nonlinearity, "nonlinearity", "jax.nn.relu")
    check_function(statistic, "statistic", "geometry.gram")
    check_flags(homogeneous=homogeneous)
    if depth < 1 or width < 1:
        raise ValueError(f"depth and width must be at least 1; got depth {depth} and width {width}")
    if max(depth, width) >= 2**31:
        raise ValueError("depth and width must be below 2**31")
    chosen = _chosen(layers, depth)

    def layer(x: Array, log_scale: Array, key: Array) -> tuple[Array, Array]:
        w = jax.random.normal(key, (x.shape[1], width), x.dtype)
        h = _step("normalization", normalization, rows_times((2 / width) ** 0.5 * x, w))
        h = _step("nonlinearity", nonlinearity, h)
        return _divide_by_scale(h, log_scale) if homogeneous else (h, log_scale)

    def step(carry: tuple, inputs: tuple[Array, Array]) -> tuple[tuple, None]:
        h, log_scale, recorded = carry
        key, row = inputs
        h, log_scale = layer(h, log_scale, key)

        def record(recorded: PyTree[Array]) -> PyTree[Array]:
            put = auto_sharded(lambda rows, one, row: rows.at[row].set(one))
            now = statistic(h), log_scale
            return jax.tree.map(lambda rows, one: put(rows, one, row), recorded, now)

        recorded = jax.lax.cond(row < len(chosen), record, lambda same: same, recorded)
        return (h, log_scale, recorded), None

    h = as_samples(x)
    batch = (h, jnp.zeros((), h.dtype))
    batch = _divide_by_scale(*batch) if homogeneous else batch
    keys = jax.random.split(key, depth)
    last, log_scale = jax.eval_shape(layer, *batch, keys[0])
    recorded = jax.tree.map(
        lambda one: replicate(jnp.zeros((len(chosen), *one.shape), one.dtype), like=h),
        (jax.eval_shape(statistic, last), log_scale),
    )
    # Layers that are not recorded have the row len(chosen), for which `step` records nothing.
    rows = jnp.full(depth, len(chosen)).at[jnp.array(chosen) - 1].set(jnp.arange(len(chosen)))
    # Only the first layer can have a different number of inputs, so one scan runs all other layers.
    carry, _ = step(varying_like((*batch, recorded), x, key), (keys[0], rows[0]))
    (h, _, (statistics, log_scale)), _ = jax.lax.scan(step, carry, (keys[1:], rows[1:]))
    return RandomNetwork(statistics, log_scale, h)


def _chosen(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """The numbers of the layers to record, by default all layers.

    The function raises an error unless the numbers ascend and lie in 1..depth.
    """
    if isinstance(layers, int):
        raise TypeError(f"layers must be a list of layers, such as ({layers},); got {layers}")
    chosen = tuple(range(1, depth + 1)) if layers is None else tuple(layers)
    if not chosen or list(chosen) != sorted(set(chosen) & set(range(1, depth + 1))):
        raise ValueError(f"layers must ascend and lie in 1..{depth}, the depth; got {chosen}")
    return chosen


def _step(name: str, function: Callable[[Array], Array], x: Array) -> Array:
    """The result of the user's function `function`, which error messages call `name`.

    The function raises an error unless the result has the shape of `x`.
    """
    y = function(x)
    if getattr(y, "shape", None) != x.shape:
        got = getattr(y, "shape", type(y).__name__)
        raise TypeError(f"{name} must return an array of shape {x.shape}; got {got}")
    return y


def _divide_by_scale(x: Array, log_scale: Array) -> tuple[Array, Array]:
    """The batch `x` divided by its root mean squared norm, and the logarithm of its true scale.

    The logarithm of the true scale is `log_scale` plus the logarithm of the divisor.
    """
    largest = jnp.max(jnp.abs(x))
    zero = largest == 0  # the comparison is false for NaN, so NaN remains NaN
    unit = unit_of(largest)
    h = x / unit
    square = jnp.where(zero, 1, jnp.square(h).sum() / len(x))
    return h * jax.lax.rsqrt(square), log_scale + jnp.log(unit) + jnp.log(square) / 2
