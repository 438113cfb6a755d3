"""Tests of the similarity of rankings, by chance and for Gaussian filters."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pruning
from pruning import criteria, expected_spearman, kendall, overlap, ranking, spearman
from pruning.gaussian import expected_overlap
from pruning.ranking import PAIRS, chance_overlap, gaussian_similarity, spearman_z_score
from tests.support.jitted import jitted

CRITERIA = {name: jitted(criterion) for name, criterion in pruning.CRITERIA.items()}
scores, similarity, permutation_p_value = map(
    jitted, (criteria.scores, ranking.similarity, ranking.permutation_p_value)
)


def test_similarity_is_that_of_each_pair(key):
    filters = jax.random.normal(key, (12, 4))
    found = jax.tree.map(np.asarray, similarity(scores(filters), ratio=0.5))
    for i, (a, b) in enumerate(PAIRS):
        a, b = CRITERIA[a](filters), CRITERIA[b](filters)
        np.testing.assert_allclose(found.spearman[i], spearman(a, b), rtol=1e-12)
        np.testing.assert_allclose(found.overlap[i], overlap(a, b, ratio=0.5), rtol=1e-12)


def test_gaussian_layers_have_the_expected_similarity_and_spread(key):
    n, dims, samples = 64, 144, 200
    draw = partial(gaussian_similarity, num_filters=n, dims=dims, ratio=0.5, samples=samples)
    drawn = jax.jit(draw)(key)
    # Pairs of criteria whose expected correlation is known.
    for pair in itertools.combinations(("l1", "l2", "fermat", "gm"), 2):
        i = PAIRS.index(pair)
        middle = expected_spearman(n, dims, pair)
        stderr = drawn.spearman[:, i].std() / samples**0.5
        assert abs(drawn.spearman[:, i].mean() - middle) < 4 * stderr + 0.06 * (1 - middle)
        shared = expected_overlap(n, dims, pair, ratio=0.5)
        stderr = drawn.overlap[:, i].std() / samples**0.5
        assert abs(drawn.overlap[:, i].mean() - shared) < 4 * stderr + 0.01
    z = spearman_z_score(drawn.spearman.mean(0) + drawn.spearman.std(0, ddof=1), drawn.spearman)
    np.testing.assert_allclose(z, 1, rtol=1e-9)


@pytest.mark.slow
def test_scales_of_the_filters_lift_spearman_above_the_gaussian_prediction(key):
    keys = jax.random.split(key, 3)
    filters = jax.random.normal(keys[0], (64, 576))
    scaled = filters * jnp.exp(0.1 * jax.random.normal(keys[1], (64, 1)))
    drawn = gaussian_similarity(keys[2], num_filters=64, dims=576, ratio=0.5, samples=60)
    z = spearman_z_score(similarity(scores(scaled), ratio=0.5).spearman, drawn.spearman)
    assert z[PAIRS.index(("l1", "l2"))] > 2.5


@pytest.mark.parametrize(("n", "ratio"), [(64, 0.5), (100, 0.29), (7, 0.5), (11, 0.3)])
def test_overlap_by_chance_is_hypergeometric(n, ratio):
    m = round(ratio * n - 0.4)
    hypergeom = scipy.stats.hypergeom(n, m, m)
    np.testing.assert_allclose(
        chance_overlap(n, ratio=ratio), [hypergeom.mean() / m, hypergeom.var() / m**2], rtol=1e-12
    )


@pytest.mark.parametrize("alike", [spearman, kendall, partial(overlap, ratio=0.5)])
def test_permutation_p_values_are_those_of_all_permutations(alike, key):
    a, b = np.arange(6.0), np.array([1.0, 0.0, 2.0, 5.0, 3.0, 4.0])
    test = jax.jit(jax.vmap(alike, (None, 0)))
    every = np.array(list(itertools.permutations(b)))
    reached = np.asarray(test(jnp.asarray(a), jnp.asarray(every)))
    expected = np.mean(reached >= float(alike(jnp.asarray(a), jnp.asarray(b))) - 1e-9)
    found = permutation_p_value(key, jnp.asarray(a), jnp.asarray(b), alike=alike, samples=2000)
    assert abs(found - expected) < 4 * (expected / 2000) ** 0.5 + 1 / 2000


def test_permutation_p_values_of_unrelated_rankings_are_uniform(key):
    a, b = jax.random.normal(key, (2, 200, 30))
    keys = jax.random.split(key, 200)
    test = jax.jit(jax.vmap(partial(permutation_p_value, samples=199)))
    assert scipy.stats.kstest(test(keys, a, b), "uniform").pvalue > 0.01
    assert np.isnan(permutation_p_value(key, a[0], jnp.ones(30), samples=9))


@pytest.mark.parametrize("triple", list(itertools.combinations(CRITERIA, 3)))
def test_likeness_is_transitive_only_as_an_inequality(triple, key):
    filters = jax.random.normal(key, (32, 9))
    found = {name: CRITERIA[name](filters) for name in triple}
    r = {(a, b): float(jitted(spearman)(found[a], found[b])) for a in triple for b in triple}
    for a, b, c in itertools.permutations(triple):
        loss = np.sqrt((1 - r[a, b] ** 2) * (1 - r[b, c] ** 2) + 1e-12)
        assert r[a, c] >= r[a, b] * r[b, c] - loss


@pytest.mark.parametrize("ratio", [0.25, 0.7])
def test_pairs_are_compared_at_the_ratio_that_is_given(ratio, key):
    """Overlaps are computed from the sets of the 2 or 7 filters, of 10, with the lowest scores."""
    filters = jax.random.normal(key, (10, 4))
    count = {0.25: 2, 0.7: 7}[ratio]
    of_filters = scores(filters)
    found = np.asarray(ranking.similarity(of_filters, ratio=ratio).overlap)
    for share, pair in zip(found, PAIRS, strict=True):
        a, b = ({*np.argsort(np.asarray(of_filters[name]))[:count].tolist()} for name in pair)
        assert abs(share - len(a & b) / count) < 1e-12


def test_gaussian_layers_are_compared_at_the_ratio_that_is_given(key):
    """At ratio 0.9, six of seven filters are pruned, of which two rankings share five or six."""
    draw = partial(gaussian_similarity, num_filters=7, dims=3, ratio=0.9, samples=5)
    shared = 6 * np.asarray(jax.jit(draw)(key).overlap)
    np.testing.assert_allclose(shared, np.round(shared), atol=1e-9)
    assert set(np.round(shared).ravel()) <= {5, 6}


def test_scores_in_another_order_of_names_give_the_same_pairs(key):
    of_filters = scores(jax.random.normal(key, (10, 4)))
    turned = dict(reversed(of_filters.items())) | {"other": jnp.zeros(10)}
    for a, b in zip(*(similarity(s, ratio=0.3) for s in (of_filters, turned)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_z_score_is_of_each_pair_about_its_own_mean():
    rng = np.random.default_rng(1)
    gaussian = rng.normal([3.0, -1.0, 0.5], [5.0, 0.1, 1.0], size=(8, 3))
    observed = np.array([2.0, 1.0, 0.0])
    expected = (observed - gaussian.mean(0)) / np.sqrt(gaussian.var(0) * 8 / 7)
    found = spearman_z_score(jnp.asarray(observed), jnp.asarray(gaussian))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_smallest_p_value_counts_the_observed_ranking(key):
    """With 9 permutations, the p-value is 1/10 for equal rankings, and 1 for opposite rankings."""
    a = jnp.arange(40.0)
    np.testing.assert_allclose(permutation_p_value(key, a, a, samples=9), 0.1)
    np.testing.assert_allclose(permutation_p_value(key, a, -a, samples=9), 1.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_p_value_has_the_dtype_of_the_statistic(dtype, key):
    def alike(a, b):
        return spearman(a, b).astype(dtype)

    a = jnp.arange(8.0)
    assert permutation_p_value(key, a, a, alike=alike, samples=9).dtype == dtype


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [jnp.ones((2, 8)), jnp.arange(9.0)])
def test_scores_of_all_criteria_have_one_length(wrong):
    one = dict.fromkeys(pruning.CRITERIA, jnp.arange(8.0))
    with pytest.raises(
        ValueError, match=r"^l1 and .* must be vectors of the same length; got shape"
    ):
        ranking.similarity(one | {"l1": wrong}, ratio=0.5)


def test_similarities_that_differ_by_rounding_are_equal(key):
    """`alike(b, b)` exceeds the similarities of all permutations of b by at most 5e-7."""

    def alike(a, b):
        return 0.5 + 1e-7 * b[0]

    b = jnp.arange(6.0)[::-1]
    assert permutation_p_value(key, b, b, alike=alike, samples=20) == 1
    p_value = permutation_p_value(key, b, b, alike=lambda a, b: 0.5 + 1e-4 * b[0], samples=200)
    np.testing.assert_allclose(p_value, 1 / 6, atol=0.1)


def test_a_permutation_without_a_similarity_has_no_p_value(key):
    """`alike` is NaN for all permutations of `b` that do not begin with 0."""
    b = jnp.arange(5.0)

    def alike(a, b):
        return jnp.where(b[0] == 0, 1.0, jnp.nan)

    assert jnp.isnan(permutation_p_value(key, b, b, alike=alike, samples=20))
    assert permutation_p_value(key, b, b, alike=lambda a, b: b[0] * 0 + 1, samples=20) == 1
