"""Ranks the filters of a layer by scores, and measures the similarity of two rankings.

The scores of a layer are one vector. The filters with the smallest scores are pruned first. All
results depend only on the order of the scores, so their gradients are zero. `chance_overlap` is the
overlap that two rankings have by chance, and `gaussian_similarity` is the similarity in layers of
Gaussian filters.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxnorm.internal import (
    auto_sharded,
    check_function,
    check_key,
    check_numeric,
    check_on_host,
    check_whole,
)
from pruning._arguments import at_least, floating, fraction, real, vectors
from pruning.criteria import CRITERIA, scores as scores_by_name

PAIRS = tuple(itertools.combinations(CRITERIA, 2))
"""The six pairs of the four criteria, by name."""


class Similarity(NamedTuple):
    """Spearman's ρ and the overlap of every pair of criteria in `PAIRS`, along the last axis."""

    spearman: Float[Array, "*layers pairs"]
    overlap: Float[Array, "*layers pairs"]


@auto_sharded
def order(scores: Float[Array, " n"]) -> Int[Array, " n"]:
    """The indices of the filters, sorted from the smallest score to the largest.

    Filters with equal scores keep their order, and filters with the score NaN come last.

    Example:
      >>> order(jnp.array([0.3, 0.1, 0.3, 0.2])).tolist()
      [1, 3, 0, 2]
    """
    vectors(scores=scores)
    return jnp.argsort(jnp.asarray(scores), stable=True)


@auto_sharded
def lowest(scores: Float[Array, " n"], *, ratio: int | float) -> Bool[Array, " n"]:
    """A mask of the ⌊ratio · n⌋ lowest scores, whose filters are pruned.

    Equal scores are ordered as in `order`.

    Args:
      ratio: The fraction of filters to prune, in (0, 1], large enough to prune at least one filter.

    Raises:
      ValueError: `ratio` lies outside (0, 1], or ⌊ratio · n⌋ = 0.
    """
    vectors(scores=scores)
    count = pruned_count(scores.size, ratio)
    return jnp.zeros(scores.shape, bool).at[order(scores)[:count]].set(True)


@auto_sharded
def overlap(
    a: Float[Array, " n"], b: Float[Array, " n"], *, ratio: int | float
) -> Float[Array, ""]:
    """The share of the ⌊ratio · n⌋ lowest filters by `a` that are also among the lowest by `b`.

    The overlap is a number in [0, 1], as in Equation 1 of Huang et al. (2020). Let m = ⌊ratio · n⌋.
    Independent rankings have the mean overlap m/n, and any two rankings have an overlap of at least
    2 − n/m. Therefore a large overlap is informative only if the ratio is small. The overlap is NaN
    if a score is NaN.

    Raises:
      ValueError: `ratio` lies outside (0, 1], or ⌊ratio · n⌋ = 0.

    Example:
      >>> a, b = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([1.0, 4.0, 3.0, 2.0])
      >>> print(overlap(a, b, ratio=0.5))
      0.5
    """
    vectors(a=a, b=b)
    both = lowest(a, ratio=ratio) & lowest(b, ratio=ratio)
    unknown = (jnp.isnan(a) | jnp.isnan(b)).any()  # infinite scores can be ranked, but NaN cannot
    return jnp.where(unknown, jnp.nan, both.sum() / pruned_count(a.size, ratio))


@auto_sharded
def spearman(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, ""]:
    """Spearman's ρ of two score vectors: the correlation of their ranks, in [−1, 1].

    If dᵢ is the rank difference of filter i and there are no ties, ρ = 1 − 6 Σ dᵢ² / (n (n² − 1)).
    Equal scores share their mean rank, as in `scipy.stats.spearmanr`. If a vector is constant or
    has a NaN, the result is NaN.

    Example:
      >>> a, b = jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 30.0, 20.0])
      >>> print(f"{spearman(a, b):.2f}")
      0.50
    """
    vectors(a=a, b=b)
    return _cosine(_centred_ranks(a), _centred_ranks(b))


@auto_sharded
def kendall(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, ""]:
    """Kendall's τ-b of two score vectors, in [−1, 1].

    τ is the share of concordant pairs minus the share of discordant pairs, corrected for ties as in
    `scipy.stats.kendalltau`. If a vector is constant or has a NaN, the result is NaN. The function
    compares all n² pairs.

    Example:
      >>> a, b = jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 30.0, 20.0])
      >>> print(f"{kendall(a, b):.2f}")
      0.33
    """
    vectors(a=a, b=b)
    return _cosine(_pair_signs(a), _pair_signs(b))


@auto_sharded
def similarity(scores: dict[str, Float[Array, " n"]], *, ratio: int | float) -> Similarity:
    """For each pair of criteria in `PAIRS`, the similarity of their rankings of a layer's filters.

    If a criterion gives equal scores to all filters, Spearman's ρ of each pair with the constant
    criterion is NaN.

    Args:
      scores: The result of `criteria.scores` for the filters of the layer.
      ratio: The fraction of filters that are pruned. Only the overlap depends on `ratio`.
    """
    if not isinstance(scores, Mapping) or not set(CRITERIA) <= set(scores):
        got = f"the keys {[*scores]}" if isinstance(scores, Mapping) else type(scores).__name__
        raise TypeError(
            f"scores must be a dictionary with the keys {[*CRITERIA]}, as criteria.scores returns; "
            f"got {got}"
        )
    vectors(**{name: scores[name] for name in CRITERIA})
    a, b = (jnp.stack([scores[pair[side]] for pair in PAIRS]) for side in (0, 1))
    shared = jax.vmap(lambda a, b: overlap(a, b, ratio=ratio))
    return Similarity(jax.vmap(spearman)(a, b), shared(a, b))


def gaussian_similarity(
    key: Key[Array, ""], *, num_filters: int, dims: int, ratio: int | float, samples: int = 200
) -> Similarity:
    """The `similarity` of rankings in random layers, for comparison with trained layers.

    The weights of `samples` layers are drawn from N(0, I). Each layer has `num_filters` filters of
    `dims` weights. Only the overlap depends on `ratio`, the fraction of pruned filters. For many
    filters of many dims, the mean similarities tend to `expected_spearman` and `expected_overlap`.

    Raises:
      TypeError: `num_filters`, `dims` or `samples` is not an `int`, or `key` is not a random key.
      ValueError: `num_filters` is below 2, `dims` or `samples` is below 1, or `overlap` would raise
        an error.
    """
    check_key(key)
    at_least(2, num_filters=num_filters)
    at_least(1, dims=dims, samples=samples)
    check_whole(num_filters=num_filters, dims=dims, samples=samples)

    def draw(key: Key[Array, ""]) -> Similarity:
        return similarity(scores_by_name(jax.random.normal(key, (num_filters, dims))), ratio=ratio)

    return jax.lax.map(draw, jax.random.split(key, samples))


def spearman_z_score(
    observed: Float[Array, " pairs"], gaussian: Float[Array, "samples pairs"]
) -> Float[Array, " pairs"]:
    """The z-score of a layer's Spearman's ρ relative to the ρ of Gaussian layers.

    Args:
      observed: The attribute `spearman` of the layer's `similarity`.
      gaussian: The attribute `spearman` of `gaussian_similarity` for layers of the same shape, with
        at least two samples. If all samples are equal, the result is infinite, or NaN if `observed`
        equals the samples.
    """
    observed, gaussian = floating(observed, "observed"), floating(gaussian, "gaussian")
    if gaussian.ndim != observed.ndim + 1 or gaussian.shape[1:] != observed.shape:
        raise ValueError(
            f"gaussian must hold samples that each have shape {observed.shape}, like observed; got "
            f"shape {gaussian.shape}"
        )
    return (observed - gaussian.mean(0)) / gaussian.std(0, ddof=1)


def chance_overlap(num_filters: int, *, ratio: int | float) -> tuple[float, float]:
    """The mean and variance of the overlap of two independent rankings.

    With n filters and m = ⌊ratio · n⌋, the number of filters that are lowest in both rankings has a
    hypergeometric distribution. The overlap has the mean m/n and the variance (1 − m/n)(n − m)/(n
    (n − 1)), which is 0 for n = 1. The mean and the variance are computed on the host from Python
    numbers.

    Example:
      >>> mean, variance = chance_overlap(64, ratio=0.5)
      >>> print(f"{mean} {variance:.6f}")
      0.5 0.003968
    """
    n, instead = num_filters, "give num_filters and ratio as Python numbers"
    check_on_host("chance_overlap", n, ratio, instead=instead)
    real(num_filters=n)
    check_numeric(n, "num_filters")
    if not 1 <= n < math.inf:
        raise ValueError(f"num_filters must be at least 1, and finite; got {n}")
    if n % 1:
        raise TypeError(f"num_filters must be an int; got {n}")
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
    """The exact one-sided p-value of the hypothesis that the rankings `a` and `b` are unrelated.

    For `samples` random permutations π, the p-value is (1 + #{alike(a, πb) ≥ alike(a, b)})/(1 +
    samples). Therefore the p-value is at least 1/(1 + samples). If `alike` returns NaN for `b` or
    for a permutation, the p-value is NaN.

    Args:
      alike: A function of two score vectors that is larger for more similar vectors, such as
        `spearman`, `kendall`, or `partial(overlap, ratio=0.5)`.
    """
    check_key(key)
    check_whole(samples=samples)
    at_least(1, samples=samples)
    vectors(a=a, b=b)
    check_function(alike, "alike", "pruning.spearman")
    observed = alike(a, b)
    if jnp.shape(observed) != ():
        raise ValueError(f"alike must return one number; got shape {jnp.shape(observed)}")

    def draw(key: Key[Array, ""]) -> Float[Array, ""]:
        return alike(a, jax.random.permutation(key, b))

    drawn = jax.lax.map(draw, jax.random.split(key, samples))
    # Values of `alike` that differ only by rounding count as equal.
    p_value = (1 + jnp.sum(drawn >= observed - 1e-6, dtype=observed.dtype)) / (1 + samples)
    return jnp.where(jnp.isnan(observed) | jnp.isnan(drawn).any(), jnp.nan, p_value)


def pruned_count(n: int, ratio: int | float) -> int:
    """The number of pruned filters out of n, which is at least one."""
    count = round_down(fraction(ratio), n)
    if count == 0:
        raise ValueError(f"ratio must select at least one of {n} scores; got {ratio}")
    return count


def round_down(ratio: int | float, n: int) -> int:
    """The number ⌊ratio · n⌋, after rounding ratio · n to nine decimals.

    Without rounding, ⌊0.29 · 100⌋ would be 28, because the product is computed as
    28.999999999999996.
    """
    return math.floor(round(ratio * n, 9))


def _centred_ranks(scores: Float[Array, " n"]) -> Float[Array, " n"]:
    return jax.scipy.stats.rankdata(scores) - (scores.size + 1) / 2


def _pair_signs(scores: Float[Array, " n"]) -> Float[Array, " n*n"]:
    ranks = _centred_ranks(scores)
    return jnp.sign(ranks[:, None] - ranks[None, :]).ravel()


def _cosine(x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, ""]:
    """The cosine of the angle between `x` and `y`, or NaN if `x` or `y` is zero."""
    return jnp.clip(jnp.sum(x * y) / jnp.sqrt(jnp.sum(x * x) * jnp.sum(y * y)), -1, 1)
