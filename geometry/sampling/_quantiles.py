"""Quantiles of draws that are never all in memory: exact order statistics, by repeated drawing.

Floating numbers have the order of whole numbers whose bits are theirs, some flipped. Each pass over
the same keys counts, for each value of the next digit, the draws that share the known digits of a
quantile, and so determines one digit more of every quantile.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from geometry.sampling._streams import (
    Inputs,
    Reduction,
    Sampler,
    compiled,
    draw_dtype,
    empty,
    fold,
    number_of_keys,
    one_draw,
)
from jaxnorm.internal import host_only

_DIGIT = 8  # bits that a pass determines


class SampleQuantiles(NamedTuple):
    """Order statistics of independent draws, and standard errors that need no density."""

    values: Float[Array, "quantiles *s"]
    stderr: Float[Array, "quantiles *s"]
    samples: int


@host_only("`jnp.quantile` of `jax.vmap(draw)`, where all draws fit in memory")
def monte_carlo_quantiles(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    quantiles: Sequence[float],
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
) -> SampleQuantiles:
    """Quantiles of the draws: for each q the ⌈q n⌉-th smallest of n, exactly.

    The standard error is half the distance of the quantiles at q ± √(q (1 − q)/n). The draws are
    made four times (eight in float64) and only digits are counted: the memory does not grow with
    `samples`. Events and whole numbers are converted to floating numbers. Arguments and errors are
    those of `monte_carlo`. The rounds are controlled by the host: nothing may be traced.

    Args:
      quantiles: Numbers in (0, 1).

    Raises:
      ValueError: A quantile lies outside (0, 1), or there is none.

    Example:
      >>> quantiles = monte_carlo_quantiles(jax.random.uniform, jax.random.key(0), 10_000, [0.9])
      >>> print(bool(abs(quantiles.values[0] - 0.9) < 5 * quantiles.stderr[0]))
      True
    """
    if len(quantiles) == 0 or not all(0 < q < 1 for q in quantiles):
        raise ValueError(f"quantiles must lie in (0, 1); got {list(quantiles)}")
    sampler = Sampler(draw, parameters, batch_size, None, devices)
    keys = number_of_keys(sampler, key, samples)
    program = compiled(sampler, _COUNTS, key, keys)
    one = jax.eval_shape(lambda key: one_draw(draw, key, parameters), key)
    dtype = draw_dtype(one.dtype)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    rank = _ranks(np.asarray(quantiles, np.float64), samples, one.shape)
    digits = np.zeros(rank.shape, unsigned)
    for shift in range(8 * dtype.itemsize - _DIGIT, -1, -_DIGIT):
        inputs = Inputs(key, parameters, (digits, np.asarray(shift, unsigned)))
        counts = np.asarray(fold(program, inputs, 0, keys, empty(program, inputs)), np.int64)
        below = counts.cumsum(-1)
        digit = (below <= rank[..., None]).sum(-1)
        rank -= np.take_along_axis(below - counts, digit[..., None], -1)[..., 0]
        digits |= digit.astype(unsigned) << np.asarray(shift, unsigned)
    values, low, high = np.split(_numbers(digits, dtype), 3)
    return SampleQuantiles(jnp.asarray(values), jnp.asarray((high - low) / 2), samples)


def _ranks(q: np.ndarray, samples: int, shape: tuple[int, ...]) -> np.ndarray:
    """Number of smaller draws of the quantiles at q and at both ends of their error bars."""
    error = np.sqrt(q * (1 - q) / samples)
    order = np.ceil(np.concatenate([q, q - error, q + error]) * samples)
    rank = np.clip(order, 1, samples).astype(np.int64) - 1
    return np.broadcast_to(rank.reshape(-1, *(1,) * len(shape)), (len(rank), *shape)).copy()


def _counts(
    draws: Float[Array, "n *s"], counted: Bool[Array, " n"], known: Array, shift: Array
) -> Array:
    """For every quantile, element of a draw and next digit, the number of draws that have it."""
    ordered = _ordered(draws)
    above = shift + ordered.dtype.type(_DIGIT)
    bits = ordered.dtype.itemsize * 8
    # With no known digit all draws agree: a shift by all bits is not defined.
    prefix = jnp.where(above < bits, ~ordered.dtype.type(0) << jnp.minimum(above, bits - 1), 0)
    digit = (ordered >> shift) & ordered.dtype.type(2**_DIGIT - 1)
    counted = counted.reshape(-1, *(1,) * (draws.ndim - 1))

    def count(known: Array) -> Array:
        agree = counted & ((ordered & prefix) == (known[None] & prefix))
        bins = jnp.where(agree, digit.astype(jnp.int32), 2**_DIGIT)
        flat = bins.reshape(len(bins), -1)
        return jax.vmap(lambda x: jnp.bincount(x, length=2**_DIGIT), 1)(flat)

    return jax.vmap(count)(known).reshape(*known.shape, 2**_DIGIT)


def _ordered(x: Float[Array, "*s"]) -> Array:
    """Whole numbers in the order of the floating numbers `x`."""
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    top = unsigned.type(1 << (8 * x.dtype.itemsize - 1))
    return jnp.where(bits & top, ~bits, bits | top)


def _numbers(ordered: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The floating numbers from their `_ordered` whole numbers."""
    top = ordered.dtype.type(1 << (8 * dtype.itemsize - 1))
    return np.where(ordered & top, ordered ^ top, ~ordered).view(dtype)


_COUNTS = Reduction(_counts, jnp.add)
