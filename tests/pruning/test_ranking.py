"""Tests of the order of scores, of pruned filters, and of rank correlations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

from pruning import kendall, order, overlap, spearman
from pruning.ranking import lowest

tied = st.lists(st.integers(0, 4), min_size=8, max_size=8)

# Table 1 of the pruning paper prints the eight filters with the lowest scores, in ascending order.
TABLE_1 = {
    "ResNet18": (
        [111, 212, 33, 61, 68, 152, 171, 45],
        [111, 33, 212, 61, 171, 42, 243, 129],
        [111, 212, 33, 61, 68, 45, 171, 42],
        [111, 212, 33, 61, 45, 171, 42, 68],
    ),
    "VGG16": (
        [102, 28, 9, 88, 66, 109, 86, 45],
        [102, 28, 88, 9, 109, 66, 86, 45],
        [102, 28, 9, 88, 109, 66, 45, 86],
        [102, 28, 88, 9, 109, 66, 45, 86],
    ),
}


both = jax.jit(lambda a, b: (spearman(a, b), kendall(a, b)))


def scipys(a, b):
    return np.array([scipy.stats.spearmanr(a, b), scipy.stats.kendalltau(a, b)])[:, 0]


def scores_that_rank(first, filters):
    scores = np.full(filters, np.inf)
    scores[first] = np.arange(len(first))
    return jnp.asarray(scores)


@pytest.mark.parametrize(
    ("network", "filters", "shared"),
    [("ResNet18", 256, [5, 7, 7, 6, 6, 8]), ("VGG16", 128, [8] * 6)],
)
def test_overlaps_of_table_1(network, filters, shared):
    scores = [scores_that_rank(first, filters) for first in TABLE_1[network]]
    for vector, first in zip(scores, TABLE_1[network], strict=True):
        assert order(vector)[:8].tolist() == first
    pairs = [(a, b) for i, a in enumerate(scores) for b in scores[i + 1 :]]
    assert [8 * overlap(a, b, ratio=8 / filters) for a, b in pairs] == shared


def test_order_is_ascending_and_stable():
    assert order(jnp.array([2.0, 1.0, jnp.nan, 2.0, 1.0, -jnp.inf])).tolist() == [5, 1, 4, 0, 3, 2]


def test_the_first_of_equal_scores_is_pruned():
    mask = lowest(jnp.array([1.0, 0.0, 1.0, 1.0]), ratio=0.5)
    assert mask.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("n", "ratio", "count"), [(100, 0.29, 29), (10, 0.3, 3), (3, 1 / 3, 1), (7, 0.5, 3), (5, 1, 5)]
)
def test_the_number_pruned_is_rounded_down_without_rounding_errors(n, ratio, count):
    scores = np.random.default_rng(n).normal(size=n)
    mask = np.asarray(lowest(jnp.asarray(scores), ratio=ratio))
    np.testing.assert_array_equal(np.sort(scores[mask]), np.sort(scores)[:count])


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.5, 0.09, float("nan")])
def test_a_ratio_that_selects_nothing_or_too_much_is_refused(ratio):
    with pytest.raises(ValueError, match=f"ratio must .*got {ratio}"):
        overlap(jnp.arange(10.0), jnp.arange(10.0), ratio=ratio)


@pytest.mark.parametrize("count", [1, 16, 30])
def test_overlap_is_symmetric_and_has_a_least_value(count, key):
    a, b = jax.random.normal(key, (2, 200, 30))
    share = jax.jit(jax.vmap(lambda a, b: overlap(a, b, ratio=count / 30)))
    np.testing.assert_array_equal(share(a, b), share(b, a))
    np.testing.assert_array_equal(share(a, a), 1)
    assert max(0, 2 - 30 / count) - 1e-12 <= share(a, b).min() <= share(a, b).max() <= 1
    np.testing.assert_allclose(share(a, -a), max(0, 2 - 30 / count), atol=1e-12)


def test_overlap_of_independent_rankings_is_hypergeometric(key):
    n, layers = 64, 20_000
    a, b = jax.random.uniform(key, (2, layers, n))
    found = np.asarray(jax.jit(jax.vmap(lambda a, b: overlap(a, b, ratio=0.5)))(a, b))
    distribution = scipy.stats.hypergeom(n, n // 2, n // 2)
    variance = distribution.var() / (n // 2) ** 2
    assert abs(found.mean() - 0.5) < 4 * (variance / layers) ** 0.5
    assert abs(found.var() - variance) < 4 * variance * (2 / layers) ** 0.5


@given(tied, tied)
@settings(max_examples=60, deadline=None)
def test_rank_correlations_are_scipys_with_ties(a, b):
    a, b = np.array(a, float), np.array(b, float)
    constant = np.ptp(a) == 0 or np.ptp(b) == 0
    expected = [np.nan, np.nan] if constant else scipys(a, b)
    found = both(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("correlation", [spearman, kendall])
def test_only_the_order_of_scores_matters(correlation, key):
    a, b = jax.random.normal(key, (2, 20))
    np.testing.assert_allclose(correlation(a, jnp.exp(3 * a)), 1, rtol=1e-14)
    np.testing.assert_allclose(correlation(a, -(a**3)), -1, rtol=1e-14)
    np.testing.assert_allclose(correlation(jnp.exp(a), b), correlation(a, b), rtol=1e-14)


@pytest.mark.parametrize("correlation", [spearman, kendall])
def test_scores_without_a_ranking_give_nan(correlation):
    a = jnp.arange(4.0)
    assert jnp.isnan(correlation(a, jnp.ones(4)))
    assert jnp.isnan(correlation(jnp.ones(4), a))
    assert jnp.isnan(correlation(a[:1], a[:1]))
    np.testing.assert_allclose(correlation(a, a.at[3].set(jnp.inf)), 1, rtol=1e-14)


@pytest.mark.parametrize("compare", [spearman, kendall, partial(overlap, ratio=0.5)])
def test_a_nan_in_either_of_the_scores_gives_nan(compare):
    a = jnp.array([3.0, 1.0, 4.0, 2.0])
    unknown = jnp.array([2.0, jnp.nan, 5.0, 3.0])
    for pair in ((a, unknown), (unknown, a), (unknown, unknown)):
        assert jnp.isnan(compare(*pair))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_low_precision_scores_are_ranked_in_at_least_float32(dtype, key):
    a, b = jax.random.normal(key, (2, 20)).astype(dtype)
    expected = scipys(np.asarray(a, float), np.asarray(b, float))
    assert jnp.finfo(spearman(a, b).dtype).bits >= 32
    np.testing.assert_allclose([spearman(a, b), kendall(a, b)], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("b", "share"),
    [([0, 1, 2, 3, 4, 5, 6], 1.0), ([5, 0, 1, 2, 3, 4, 6], 0.5), ([6, 5, 0, 1, 2, 3, 4], 0.0)],
)
def test_overlaps_are_shares_of_what_is_pruned_where_the_ratio_is_rounded(b, share):
    """At ratio 0.3, two of seven filters are pruned; the rankings share 2, 1 or 0 of these two."""
    assert float(overlap(jnp.arange(7.0), jnp.asarray(b, float), ratio=0.3)) == share


@pytest.mark.parametrize("compare", [spearman, kendall, lambda a, b: overlap(a, b, ratio=0.3)])
def test_comparisons_can_be_batched_compiled_and_have_gradient_zero(compare, key):
    a, b = jax.random.normal(key, (2, 3, 20))
    expected = jnp.stack([compare(*pair) for pair in zip(a, b, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(compare))(a, b), expected, rtol=1e-14)
    np.testing.assert_array_equal(jax.jit(jax.grad(compare))(a[0], b[0]), 0)


def test_infinite_scores_are_ranked_as_the_largest_and_the_smallest():
    a, b = jnp.array([np.inf, 1, 2, -np.inf, 3]), jnp.array([-np.inf, 5, np.inf, 0, 2])
    finite = [jnp.nan_to_num(x, posinf=9, neginf=-9) for x in (a, b)]
    for compare in (spearman, kendall, partial(overlap, ratio=0.4)):
        np.testing.assert_allclose(compare(a, b), compare(*finite), rtol=1e-12)
    assert float(overlap(a, b, ratio=0.4)) == 0.5  # the two criteria prune {3, 1} and {0, 3}
