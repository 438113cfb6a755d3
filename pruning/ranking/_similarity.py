"""How alike two rankings are, beside what chance and what Gaussian filters would give."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxnorm._numerics import auto_sharded, check_on_host
from pruning._arguments import vectors
from pruning.criteria._criteria import CRITERIA, scores
from pruning.ranking._ranking import overlap, pruned_count, spearman

PAIRS = tuple(itertools.combinations(CRITERIA, 2))


class Similarity(NamedTuple):
    """Spearman's ρ and overlap of every pair of `PAIRS`, on the last axis."""

    spearman: Float[Array, "*layers pairs"]
    overlap: Float[Array, "*layers pairs"]


@auto_sharded
def similarity(scores: dict[str, Float[Array, " n"]], *, ratio: int | float) -> Similarity:
    """How alike the criteria rank the filters of a layer, pair by pair of `PAIRS`.

    Args:
      scores: What `criteria.scores` gives for the filters.
      ratio: The fraction pruned, of which `overlap` compares the sets.
    """
    a, b = (jnp.stack([scores[pair[side]] for pair in PAIRS]) for side in (0, 1))
    shared = jax.vmap(lambda a, b: overlap(a, b, ratio=ratio))
    return Similarity(jax.vmap(spearman)(a, b), shared(a, b))


def gaussian_similarity(
    key: Key[Array, ""], *, num_filters: int, dims: int, ratio: int | float, samples: int = 200
) -> Similarity:
    """`similarity` of `samples` layers drawn from N(0, I): the band that Gaussian filters fill.

    `expected_spearman` and `expected_overlap` are the means of these for many filters.
    """

    def draw(key: Key[Array, ""]) -> Similarity:
        return similarity(scores(jax.random.normal(key, (num_filters, dims))), ratio=ratio)

    return jax.lax.map(draw, jax.random.split(key, samples))


def spearman_z_score(
    observed: Float[Array, " pairs"], gaussian: Float[Array, "samples pairs"]
) -> Float[Array, " pairs"]:
    """How many standard deviations a layer's Spearman's ρ lie above those of Gaussian layers.

    Args:
      observed: The `spearman` of the layer's `similarity`.
      gaussian: That of `gaussian_similarity` for its shape, two samples at least.
    """
    return (observed - gaussian.mean(0)) / gaussian.std(0, ddof=1)


def chance_overlap(num_filters: int, *, ratio: int | float) -> tuple[float, float]:
    """Mean and variance of the overlap of two independent rankings: hypergeometric.

    With n filters and m = ⌊ratio · n⌋ they are m/n and (1 − m/n)(n − m)/(n (n − 1)), computed on
    the host from Python numbers.

    Example:
      >>> mean, variance = chance_overlap(64, ratio=0.5)
      >>> print(f"{mean} {variance:.6f}")
      0.5 0.003968
    """
    n, instead = num_filters, "give num_filters and ratio as Python numbers"
    check_on_host("chance_overlap", n, ratio, instead=instead)
    if not 1 <= n < math.inf:
        raise ValueError(f"num_filters must be at least 1, and finite; got {n}")
    m = pruned_count(n, ratio)
    return m / n, (1 - m / n) * (n - m) / (n * (n - 1)) if n > 1 else 0.0


@auto_sharded
def permutation_p_value(
    key: Key[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " n"],
    *,
    alike: Callable[[Float[Array, " n"], Float[Array, " n"]], Float[Array, ""]] = spearman,
    samples: int = 999,
) -> Float[Array, ""]:
    """Chance that unrelated rankings are as alike as `a` and `b`, or more: exact, one-sided.

    (1 + #{alike(a, πb) ≥ alike(a, b)})/(1 + samples) over random permutations π; at least
    1/(1 + samples). NaN where `alike` is.

    Args:
      alike: Larger for more similar score vectors: `spearman`, `kendall`, or `overlap` with its
        ratio bound.
    """
    vectors(a=a, b=b)
    observed = alike(a, b)

    def draw(key: Key[Array, ""]) -> Float[Array, ""]:
        return alike(a, jax.random.permutation(key, b))

    drawn = jax.lax.map(draw, jax.random.split(key, samples))
    # Equal but for rounding counts as equal.
    p_value = (1 + jnp.sum(drawn >= observed - 1e-6, dtype=observed.dtype)) / (1 + samples)
    return jnp.where(jnp.isnan(observed), jnp.nan, p_value)
