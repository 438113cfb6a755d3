"""Kolmogorov-Smirnov distance of weights to a Gaussian, and what may be concluded from it.

Weights come in any shape: only their values matter. Statistics and p-values are in at least
float32. A large p-value does not support that weights are normal, as they may be too few to tell;
of 10⁶ weights any trained layer is rejected, and the distance itself is what to report, with
`ks_bound`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jaxnorm._numerics import auto_sharded, promote_to_float32

Scale = int | float | Float[Array, ""]
BINS, PARTS = 2**16, 2**8  # of [0, 1], and of those bins that may hold the supremum
CHUNK = 2**16  # entries counted at a time
BATCH = 2**21  # entries of normal samples drawn at a time


def ks_normal(
    x: Float[Array, "*shape"], *, scale: Scale | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Kolmogorov-Smirnov test of all entries of `x` against N(0, scale²): statistic, p-value.

    The statistic is `ks_distance`; the p-value is Kolmogorov's limit law of √n D. Without `scale`
    the root mean square of the data stands for it, the paper's first test read literally. The
    p-value is then mildly conservative: at n = 2000 tests of nominal size 10, 5 and 1% have size
    8.6, 4.3 and 0.8%; `lilliefors` is exact.

    Example:
      >>> statistic, p_value = ks_normal(jnp.ones(512))
      >>> print(f"{statistic:.3f} {p_value:.3f}")
      0.841 0.000
    """
    statistic = ks_distance(x, scale=scale)
    return statistic, _kolmogorov_survival(statistic * x.size**0.5)


@auto_sharded
def ks_distance(x: Float[Array, "*shape"], *, scale: Scale | None = None) -> Float[Array, ""]:
    """D = sup |F − Φ(·/scale)| over the entries of `x`, F the share of them that is not larger.

    Without `scale` the root mean square stands for it; zeros then give NaN. Exact to rounding. On a
    CPU float32 weights, where there are 2¹⁵ or more, are not sorted but counted in bins of Φ, and
    only bins that can hold the supremum are counted more finely: then it is exact to 10⁻⁷.
    Piecewise smooth in `x` and `scale`.

    Raises:
      ValueError: If `x` is empty.
    """
    if x.size == 0:
        raise ValueError(f"x must hold at least one weight; got shape {x.shape}")
    h = promote_to_float32(x).ravel()
    c = jnp.asarray(jnp.sqrt(jnp.square(h).mean()) if scale is None else scale, h.dtype)
    counted = h.dtype == jnp.float32 and h.size >= 2**15
    # On a CPU XLA sorts 2.4 million numbers in 2 s, and counting them takes 0.1 s.
    element, upto, over = jax.lax.platform_dependent(
        *jax.lax.stop_gradient((h, c)), cpu=_counted if counted else _sorted, default=_sorted
    )
    above = upto / h.size - _normal_cdf(_entry(h, element) / c)
    # From the nearer tail, where differences keep more digits.
    tail = _normal_cdf(-_entry(h, element) / c) - (h.size - upto) / h.size
    above = jnp.where(element > 0, tail, above)
    return jnp.where(over, above, -above)


def ks_bound(
    x: Float[Array, "*shape"], *, scale: Scale | None = None, level: float = 0.05
) -> Float[Array, ""]:
    """The distance of the weights' law from N(0, scale²) is below this, at confidence 1 − level.

    D + √(log(2/level)/2n), by the triangle inequality from the bound of Dvoretzky, Kiefer,
    Wolfowitz and Massart: valid for any law and any n, also where the scale is the data's.
    """
    return ks_distance(x, scale=scale) + math.sqrt(math.log(2 / level) / (2 * x.size))


def ks_equivalence(
    x: Float[Array, "*shape"], *, delta: float, scale: Scale | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Test that the weights' law is nearer than `delta` to N(0, scale²): statistic, p-value.

    The hypothesis to reject is sup |F − Φ| ≥ delta; a small p-value supports normality, to within
    delta. p = 2 exp(−2 n (delta − D)²), at most 1: the level at which `ks_bound` reaches delta.
    About 74,000 weights are needed for delta = 0.01.
    """
    statistic = ks_distance(x, scale=scale)
    short = jnp.maximum(delta - statistic, 0)
    return statistic, jnp.minimum(2 * jnp.exp(-2 * x.size * jnp.square(short)), 1)


@auto_sharded
def lilliefors(
    key: Key[Array, ""], x: Float[Array, "*shape"], *, mean_known: bool = False, samples: int = 999
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Test that the entries of `x` are normal, of unknown scale: statistic, exact p-value.

    The statistic is the distance D to the normal law of the data's own mean and standard deviation
    or, with `mean_known`, of mean 0 and the data's root mean square, as the paper assumes. Its law
    depends on n alone, so p = (1 + #{D* ≥ D})/(1 + samples) over fresh normal samples of the same
    size is exact (Lilliefors 1967 tabulates it). Kolmogorov's p-value in its place is nearly
    meaningless if the mean is estimated: nominal 10, 5 and 1% are 0.10, 0.015 and 0.00% in truth.

    Layers of one size share their samples under `vmap` with one key.

    Example:
      >>> statistic, p_value = lilliefors(jax.random.key(0), jnp.linspace(-1, 1, 600), samples=99)
      >>> print(f"{p_value:.2f}")
      0.01
    """

    def distance(x: Float[Array, " n"]) -> Float[Array, ""]:
        return ks_distance(x if mean_known else x - x.mean())

    return _against_normal_samples(key, x, distance, samples)


@auto_sharded
def anderson_darling(
    key: Key[Array, ""], x: Float[Array, "*shape"], *, samples: int = 999
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Anderson and Darling's test of N(0, c²), c the data's root mean square: statistic, p-value.

    A² = −n − Σ (2i − 1)(log Φ(z₍ᵢ₎) + log(1 − Φ(z₍ₙ₊₁₋ᵢ₎)))/n, which weighs the tails more than
    `ks_normal` does. The p-value is exact, from normal samples, as in `lilliefors`. Sorts.
    """

    def statistic(x: Float[Array, " n"]) -> Float[Array, ""]:
        n = x.size
        z = jnp.sort(x) / jnp.sqrt(jnp.square(x).mean())
        # About logarithms at p = (i − ½)/n, whose sum is exact: else sums of n cancel to one.
        middle = (np.arange(n) + 0.5) / n
        at_middle = -n - 4 * np.sum(middle * np.log(middle))
        p = jnp.asarray(middle, x.dtype)
        lower, upper = (jax.scipy.stats.norm.logcdf(y) - jnp.log(p) for y in (z, -z[::-1]))
        return float(at_middle) - 2 * jnp.sum(p * (lower + upper))

    return _against_normal_samples(key, x, statistic, samples)


def _against_normal_samples(
    key: Key[Array, ""],
    x: Float[Array, "*shape"],
    statistic: Callable[[Float[Array, " n"]], Float[Array, ""]],
    samples: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    h = promote_to_float32(x).ravel()
    found = statistic(h)

    def draw(key: Key[Array, ""]) -> Float[Array, ""]:
        return statistic(jax.random.normal(key, h.shape, h.dtype))

    at_once = max(1, BATCH // h.size)
    drawn = jax.lax.map(draw, jax.random.split(key, samples), batch_size=min(at_once, samples))
    return found, (1 + jnp.sum(drawn >= found, dtype=found.dtype)) / (1 + samples)


class _Supremum(NamedTuple):
    """sup |F − Φ(·/c)| is at `element`, with `upto` entries up to it; `over` if F is above Φ."""

    element: Float[Array, ""]
    upto: Float[Array, ""]
    over: Bool[Array, ""]


def _sorted(h: Float[Array, " n"], c: Float[Array, ""]) -> _Supremum:
    ranked = jnp.sort(h)
    cdf, count = _normal_cdf(ranked / c), jnp.arange(h.size, dtype=h.dtype)
    above, below = (count + 1) / h.size - cdf, cdf - count / h.size
    i, j = above.argmax(), below.argmax()
    over = above[i] >= below[j]
    return _Supremum(ranked[jnp.where(over, i, j)], jnp.where(over, i + 1, j).astype(h.dtype), over)


@jax.custom_batching.sequential_vmap  # else both branches of its `cond` would be taken
def _counted(h: Float[Array, " n"], c: Float[Array, ""]) -> _Supremum:
    """As `_sorted`, to 10⁻⁷, by counting: sorting 10⁶ numbers takes XLA a second on a CPU.

    Φ is cut into 2²⁴ cells, as finely as float32 resolves it near 1. Entries are counted in `BINS`
    of `PARTS` cells each. The counts at the edges of a bin bound |F − Φ| inside it, and in bins
    that may hold the supremum, of which there are some fifty, the cells are counted too. Should
    there be more than `PARTS` such bins, as for evenly spaced quantiles, entries are sorted.

    Each count goes over `CHUNK` entries at a time, whose Φ stays in the cache: arrays of all
    entries would cost more than the counting.
    """
    n, dtype = h.size, h.dtype
    size = min(n, CHUNK)

    def chunk(i: Int[Array, ""]) -> tuple[Float[Array, " size"], Int[Array, " size"]]:
        """Entries and their cells; the last chunk overlaps the one before, there no cell counts."""
        start = jnp.minimum(i * size, n - size)
        part = jax.lax.dynamic_slice(h, (start,), (size,))
        cell = ((jax.lax.erf(part / c * 0.5**0.5) + 1) * (BINS * PARTS // 2)).astype(jnp.int32)
        fresh = start + jnp.arange(size, dtype=jnp.int32) >= i * size
        return part, jnp.where(fresh, jnp.clip(cell, 0, BINS * PARTS - 1), BINS * PARTS)

    def over_chunks(step: Callable[[Array, Array, Array], Array], start: Array) -> Array:
        return jax.lax.fori_loop(0, -(-n // size), lambda i, state: step(state, *chunk(i)), start)

    def count(counts: Array, _: Array, cell: Array) -> Array:
        return counts.at[cell // PARTS].add(1, mode="drop")

    counts = over_chunks(count, jnp.zeros(BINS, jnp.int32))
    upto = jnp.cumsum(counts, dtype=jnp.int32)
    below, edges = upto - counts, jnp.arange(BINS, dtype=dtype) / BINS
    bound = jnp.maximum(_share(upto, n) - edges, edges + 1 / BINS - _share(below, n))
    candidate = bound > jnp.abs(_share(below, n) - edges).max() - 2e-7  # but for rounding
    chosen = jnp.flatnonzero(candidate, size=PARTS, fill_value=BINS).astype(jnp.int32)
    slot = jnp.full(BINS + 1, PARTS, jnp.int32)
    slot = slot.at[chosen].set(jnp.arange(PARTS, dtype=jnp.int32)).at[BINS].set(PARTS)

    def count_finely(counts: Array, _: Array, cell: Array) -> Array:
        return counts.at[slot[cell // PARTS] * PARTS + cell % PARTS].add(1, mode="drop")

    fine = over_chunks(count_finely, jnp.zeros(PARTS**2, jnp.int32)).reshape(PARTS, PARTS)
    upto = below[chosen][:, None] + jnp.cumsum(fine, 1, dtype=jnp.int32)
    cells = chosen[:, None] * PARTS + jnp.arange(PARTS, dtype=jnp.int32)[None, :]
    height = cells.astype(dtype) / (BINS * PARTS)
    above = jnp.where(fine > 0, _share(upto, n) - height, -1).ravel()
    under = jnp.where(fine > 0, height - _share(upto - fine, n), -1).ravel()
    i, j = above.argmax(), under.argmax()
    over = above[i] >= under[j]
    number = jnp.where(over, upto.ravel()[i], (upto - fine).ravel()[j])
    # The last entry of the cell counts for an excess of F, the first for a lack.
    at, side = cells.ravel()[jnp.where(over, i, j)], jnp.where(over, 1, -1).astype(dtype)

    def farthest(best: Array, part: Array, cell: Array) -> Array:
        return jnp.maximum(best, jnp.where(cell == at, side * part, -jnp.inf).max())

    element = side * over_chunks(farthest, jnp.array(-jnp.inf, dtype))
    found = _Supremum(element, number.astype(dtype), over)
    return jax.lax.cond(candidate.sum() > PARTS, _sorted, lambda h, c: found, h, c)


def _share(count: Int[Array, "*s"], n: int) -> Float[Array, "*s"]:
    return count.astype(jnp.float32) / n


@jax.custom_jvp
def _entry(h: Float[Array, " n"], element: Float[Array, ""]) -> Float[Array, ""]:
    """`element`, which is one of the entries of `h` and moves with those that it equals."""
    return element


@_entry.defjvp
def _entry_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    h, element = primals
    there = h == element
    return _entry(h, element), jnp.where(there, tangents[0], 0).sum() / there.sum(dtype=h.dtype)


def _normal_cdf(z: Float[Array, "*s"]) -> Float[Array, "*s"]:
    return jax.scipy.stats.norm.cdf(z)


def _kolmogorov_survival(x: Float[Array, ""]) -> Float[Array, ""]:
    """P(K > x) of Kolmogorov's law, by that one of its two theta series that converges at once."""
    large = x > 1
    k = jnp.arange(1, 5, dtype=x.dtype)
    safe = jnp.where(large, x, 1)
    signs = jnp.array([1, -1, 1, -1], x.dtype)
    upper = 2 * jnp.sum(signs * jnp.exp(-2 * jnp.square(k * safe)))
    safe = jnp.where(large, 1, jnp.maximum(x, 0.05))
    terms = jnp.exp(-jnp.square((2 * k - 1) * jnp.pi / safe) / 8)
    return jnp.where(large, upper, 1 - (2 * jnp.pi) ** 0.5 / safe * terms.sum())
