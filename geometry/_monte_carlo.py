"""Monte Carlo means that travel with their standard errors."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxnorm._statistics import widen


class Estimate(NamedTuple):
    """A mean over independent draws, its standard error, and the number of draws."""

    mean: Float[Array, "*s"]
    stderr: Float[Array, "*s"]
    samples: int


def monte_carlo(
    draw: Callable[[Key[Array, ""]], Array],
    key: Key[Array, ""],
    samples: int,
    *,
    batch_size: int | None = None,
) -> Estimate:
    """Mean of `draw(key)` over independent keys, and the standard error of that mean.

    Draw i has the key `fold_in(key, i)`, so that the draws do not depend on `batch_size`: the
    estimates of two batch sizes differ by rounding alone. Batches are merged as in Chan, Golub and
    LeVeque (1979). Compiled once for each function object `draw`.

    Args:
      draw: Any function of a key; its result may have any shape, and be Boolean or an integer.
      key: Of the whole estimate.
      samples: Number of draws, at least 2.
      batch_size: Draws held in memory at a time; by default all.

    Raises:
      ValueError: `samples` is below 2 or `batch_size` below 1.

    Example:
      >>> estimate = monte_carlo(jax.random.uniform, jax.random.key(0), 10_000)
      >>> print(abs(estimate.mean - 0.5) < 5 * estimate.stderr)
      True
    """
    if samples < 2:
        raise ValueError(f"a standard error needs at least 2 samples; got {samples}")
    size = samples if batch_size is None else batch_size
    if size < 1:
        raise ValueError(f"batch_size must be at least 1; got {size}")
    mean, var = _mean_and_variance(draw, key, samples, min(size, samples))
    return Estimate(mean, jnp.sqrt(var / (samples - 1)), samples)


@partial(jax.jit, static_argnames=("draw", "samples", "size"))
def _mean_and_variance(
    draw: Callable[[Array], Array], key: Array, samples: int, size: int
) -> tuple[Array, Array]:
    """Mean and biased variance of the draws, `size` of them at a time."""

    def batch(start: Array | int, count: int) -> tuple[Array, Array]:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, start + jnp.arange(count))
        draws = jax.vmap(draw)(keys)
        floating = jnp.issubdtype(draws.dtype, jnp.floating)
        draws = widen(draws if floating else draws.astype(float))
        return draws.mean(0), draws.var(0)

    def step(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
        share = 1 / (i + 1).astype(carry[0].dtype)
        return _merge(carry, batch(i * size, size), share), None

    full, rest = divmod(samples, size)
    # From nothing, which has no share in the first batch: `draw` is compiled once.
    empty = jax.tree.map(jnp.zeros_like, jax.eval_shape(partial(batch, 0, size)))
    merged, _ = jax.lax.scan(step, empty, jnp.arange(full))
    return _merge(merged, batch(full * size, rest), rest / samples) if rest else merged


def _merge(a: tuple[Array, Array], b: tuple[Array, Array], share: Array | float) -> tuple:
    """Mean and variance of a union of which `b` has the given share."""
    delta = b[0] - a[0]
    var = (1 - share) * a[1] + share * b[1] + share * (1 - share) * delta * delta
    return a[0] + share * delta, var
