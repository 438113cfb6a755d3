"""Quantiles of draws that are never all in memory: exact order statistics, by drawing anew.

Floating numbers are ordered as whole numbers are, once their bits are turned about. Each pass over
the same keys counts how many draws share the digits found so far and have each next one, and so
finds one digit more of every quantile.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from geometry._arguments import host_only
from geometry.sampling._streams import Reduction, empty, fold, plan, sampled

_DIGIT = 8  # bits that a pass finds


class SampleQuantiles(NamedTuple):
    """Order statistics of independent draws, and standard errors that no density enters."""

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
    block: int | None = None,
    devices: Sequence[Any] | None = None,
) -> SampleQuantiles:
    """Quantiles of the draws: for each q the ⌈q n⌉-th smallest of n, exactly.

    The standard error is half the distance of the quantiles at q ± √(q (1 − q)/n). The draws are
    made four times (eight in float64), for what is kept is a count of digits: the memory does not
    grow with `samples`. Events and whole numbers are taken as floating numbers. Arguments and
    errors are those of `monte_carlo`. The rounds are led from the host: nothing may be traced.

    Args:
      quantiles: Numbers in (0, 1).

    Raises:
      ValueError: A quantile lies outside (0, 1), or there is none.

    Example:
      >>> found = monte_carlo_quantiles(jax.random.uniform, jax.random.key(0), 10_000, [0.9])
      >>> print(bool(abs(found.values[0] - 0.9) < 5 * found.stderr[0]))
      True
    """
    if len(quantiles) == 0 or not all(0 < q < 1 for q in quantiles):
        raise ValueError(f"quantiles must lie in (0, 1); got {list(quantiles)}")
    which, keys = plan(
        draw,
        key,
        samples,
        parameters=parameters,
        batch_size=batch_size,
        block=block,
        devices=devices,
    )
    q = np.asarray(quantiles, np.float64)
    around = np.sqrt(q * (1 - q) / samples)
    order = np.ceil(np.concatenate([q, q - around, q + around]) * samples)
    one = jax.eval_shape(lambda key: draw(key, *parameters), key)
    shape = one.shape if block is None else one.shape[1:]
    dtype = sampled(one.dtype)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    # How many draws are smaller, one of which each order statistic is the next.
    rank = np.clip(order, 1, samples).astype(np.int64) - 1
    rank = np.broadcast_to(rank.reshape(-1, *(1,) * len(shape)), (len(order), *shape)).copy()
    found = np.zeros(rank.shape, unsigned)
    for shift in range(8 * dtype.itemsize - _DIGIT, -1, -_DIGIT):
        extra = (found, np.asarray(shift, unsigned))
        none = empty(which, _COUNTS, key, parameters, extra)
        counts = np.asarray(fold(which, _COUNTS, key, 0, keys, none, parameters, extra), np.int64)
        below = counts.cumsum(-1)
        digit = (below <= rank[..., None]).sum(-1)
        before = np.take_along_axis(below - counts, digit[..., None], -1)[..., 0]
        rank -= before
        found |= digit.astype(unsigned) << np.asarray(shift, unsigned)
    values, low, high = np.split(_numbers(found, dtype), 3)
    return SampleQuantiles(jnp.asarray(values), jnp.asarray((high - low) / 2), samples)


def _counts(
    draws: Float[Array, "n *s"], counted: Bool[Array, " n"], found: Array, shift: Array
) -> Array:
    """For every quantile and number of a draw, how many draws go on with each digit."""
    ordered = _ordered(draws)
    above = shift + ordered.dtype.type(_DIGIT)
    bits = ordered.dtype.itemsize * 8
    # All bits agree where none has been found: a shift by all of them is not defined.
    prefix = jnp.where(above < bits, ~ordered.dtype.type(0) << jnp.minimum(above, bits - 1), 0)
    digit = (ordered >> shift) & ordered.dtype.type(2**_DIGIT - 1)
    these = counted.reshape(-1, *(1,) * (draws.ndim - 1))

    def count(found: Array) -> Array:
        agree = these & ((ordered & prefix) == (found[None] & prefix))
        into = jnp.where(agree, digit.astype(jnp.int32), 2**_DIGIT)
        flat = into.reshape(len(into), -1)
        return jax.vmap(lambda x: jnp.bincount(x, length=2**_DIGIT), 1)(flat)

    return jax.vmap(count)(found).reshape(*found.shape, 2**_DIGIT)


def _ordered(x: Float[Array, "*s"]) -> Array:
    """Whole numbers in the order of the floating numbers `x`."""
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    top = unsigned.type(1 << (8 * x.dtype.itemsize - 1))
    return jnp.where(bits & top, ~bits, bits | top)


def _numbers(ordered: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The floating numbers of which `_ordered` made these."""
    top = ordered.dtype.type(1 << (8 * dtype.itemsize - 1))
    return np.where(ordered & top, ordered ^ top, ~ordered).view(dtype)


_COUNTS = Reduction(_counts, jnp.add)
