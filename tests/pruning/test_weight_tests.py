"""Tests of the hypothesis tests of spread, mean and symmetry, and of corrections for many tests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pruning
from pruning import weight_tests
from tests.support.jitted import jitted
from tests.support.sizes_of_tests import assert_size, at_the_boundary, p_values

mean_equivalence, std_equivalence, std_homogeneity, symmetry, filter_stds, holm = map(
    jitted,
    (
        *(pruning.mean_equivalence, pruning.weight_tests.std_equivalence, pruning.std_homogeneity),
        *(pruning.weight_tests.symmetry, weight_tests.filter_stds, weight_tests.holm),
    ),
)


@pytest.fixture
def layers(key):
    """500 layers of 16 Gaussian filters of 144 dims, all with standard deviation 0.1."""
    return 0.1 * jax.random.normal(key, (500, 16, 144))


def test_homogeneity_is_scipys_bartlett_test(layers):
    filters = np.asarray(layers[0]) * np.linspace(1, 1.2, 16)[:, None]
    expected = scipy.stats.bartlett(*filters)
    np.testing.assert_allclose(std_homogeneity(jnp.asarray(filters)), expected, rtol=1e-9)
    single = std_homogeneity(jnp.asarray(filters, jnp.float32))
    np.testing.assert_allclose(single, expected, rtol=1e-3)


@pytest.mark.parametrize("test", [std_homogeneity, symmetry])
def test_p_values_are_uniform_for_gaussian_filters(test, layers):
    found = p_values(test, layers)
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01


def test_filters_that_spread_too_little_have_p_values_near_one(key):
    rotation, _ = np.linalg.qr(jax.random.normal(key, (144, 144)))
    assert std_homogeneity(jnp.asarray(rotation[:64]))[1] > 0.999


def test_a_spread_of_two_percent_is_rejected(key):
    filters = jax.random.normal(key, (256, 2304), jnp.float32)
    spread = jax.random.normal(jax.random.key(1), (256, 1), jnp.float32)
    scaled = np.asarray(filters) * np.exp(np.float32(0.02) * np.asarray(spread))
    assert std_homogeneity(jnp.asarray(scaled))[1] < 1e-3 < std_homogeneity(filters)[1]


def test_stds_of_gaussian_filters_spread_as_they_should(layers):
    stds = np.asarray(jax.jit(jax.vmap(filter_stds))(layers))
    expected = scipy.stats.chi(143).std() / scipy.stats.chi(143).mean()
    assert abs(stds.std() / stds.mean() / expected - 1) < 4 / (2 * stds.size) ** 0.5


def test_equivalence_of_stds_has_its_size(key):
    layers = at_the_boundary(key, 2000, 16, 144, 0.2)
    assert_size(p_values(lambda x: std_equivalence(x, margin=0.2), layers), 0.05, 0.045)
    narrow = 0.1 * jax.random.normal(key, (64, 576))
    assert std_equivalence(narrow, margin=0.05)[1] < 0.001


@pytest.mark.parametrize("mean", [0.0, 0.02, -0.08])
def test_mean_equivalence_is_the_larger_of_scipys_two_t_tests(mean):
    x = np.random.default_rng(0).normal(mean, 1, 500)
    margin = 0.05 * x.std(ddof=1)
    test: Any = scipy.stats.ttest_1samp
    below = test(x, margin, alternative="less").pvalue
    above = test(x, -margin, alternative="greater").pvalue
    found = mean_equivalence(jnp.asarray(x), margin=0.05)[1]
    np.testing.assert_allclose(found, max(below, above), rtol=1e-9)


def test_mean_equivalence_has_the_known_size_and_power(key):
    x = jax.random.normal(key, (1000, 2000), jnp.float32)
    test = lambda x: mean_equivalence(x, margin=0.05)  # noqa: E731
    assert_size(p_values(test, x + 0.05), 0.05, 0.051)
    assert_size(p_values(test, x), 0.05, 0.4456)
    assert np.mean(p_values(test, x[:, :1000]) < 0.05) == 0


def test_symmetry_is_blind_to_the_distribution_and_sees_skewness(key):
    heavy = jnp.asarray(np.random.default_rng(0).standard_t(1.5, (500, 300)))
    assert scipy.stats.kstest(p_values(symmetry, heavy), "uniform").pvalue > 0.01
    skew = np.asarray(jax.random.exponential(key, (500,)))
    assert symmetry(jnp.asarray(skew - np.median(skew)))[1] < 1e-3
    walk = np.cumsum(np.sign([3.0, -2.5, 2.0, 1.0, -0.5]))
    x = jnp.array([-0.5, 3.0, 1.0, -2.5, 2.0])
    np.testing.assert_allclose(symmetry(x)[0], np.abs(walk).max() / 5**0.5, rtol=1e-12)


@pytest.mark.parametrize("highest", [19, 21, 22, 30])  # above 20, `symmetry` sums another series
def test_p_values_of_symmetry_are_those_of_brownian_motion(highest):
    signs = np.ones(400)
    signs[highest::2] = -1
    statistic, p_value = symmetry(jnp.asarray(signs * np.arange(400, 0, -1)))
    np.testing.assert_allclose(statistic, highest / 20, rtol=1e-12)
    k = np.arange(1, 400, 2)
    terms = np.sin(k * np.pi / 2) / k * np.exp(-((k * np.pi / statistic) ** 2) / 8)
    np.testing.assert_allclose(p_value, 1 - 4 / np.pi * terms.sum(), rtol=1e-9)


def test_p_values_of_symmetry_are_those_of_a_random_walk():
    steps = np.random.default_rng(0).choice([-1, 1], (2000, 4000))
    reached = np.abs(np.cumsum(steps, 1)).max(1) / 4000**0.5
    for level in (1.2, 1.96, 2.5):
        x = np.ones(400)
        x[::2] = -1.0
        x[: int(level * 10) * 2 : 2] = 1.0  # the partial sums of signs rise to level · √400
        statistic, p_value = symmetry(jnp.asarray(x))
        np.testing.assert_allclose(statistic, level, atol=0.1)
        expected = np.mean(reached >= float(statistic))
        assert abs(p_value - expected) < 4 * (expected / 2000) ** 0.5 + 0.01


def test_holms_p_values_are_those_of_a_loop():
    found = np.random.default_rng(0).uniform(size=12) ** 3
    expected, largest = np.empty(12), 0.0
    for i, j in enumerate(np.argsort(found)):
        largest = max(largest, min(1, (12 - i) * found[j]))
        expected[j] = largest
    np.testing.assert_allclose(holm(jnp.asarray(found)), expected, rtol=1e-14)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 9), (9, 1)])
def test_one_filter_or_one_dim_has_no_spread(shape):
    with pytest.raises(ValueError, match="at least 2 filters and 2 dims"):
        std_homogeneity(jnp.ones(shape))


def test_stds_of_filters_with_means_of_three_are_numpys_and_their_spread_by_hand():
    """Filters have different means, and different variances of at least 5."""
    rng = np.random.default_rng(4)
    filters = rng.normal(3, 5**0.5, size=(7, 11)) * np.linspace(1, 3, 7)[:, None]
    filters += np.arange(7)[:, None]
    stds = filters.std(1, ddof=1)
    np.testing.assert_allclose(filter_stds(jnp.asarray(filters)), stds, rtol=1e-12)
    for margin in (0.2, 0.7):
        found = std_equivalence(jnp.asarray(filters), margin=margin)
        statistic = np.sum((stds - stds.mean()) ** 2) / (margin * stds.mean()) ** 2
        np.testing.assert_allclose(found.statistic, statistic, rtol=1e-12)
        expected = scipy.stats.chi2.cdf(statistic, 6)
        np.testing.assert_allclose(found.p_value, expected, rtol=1e-9)


@pytest.mark.parametrize("mean", [3.0, -3.0])
def test_the_statistic_of_mean_equivalence_by_hand(mean):
    x = np.random.default_rng(5).normal(mean, 5, size=(4, 9))
    found = mean_equivalence(jnp.asarray(x), margin=0.7)
    statistic = 36**0.5 * (0.7 - abs(x.mean()) / x.std(ddof=1))
    np.testing.assert_allclose(found.statistic, statistic, rtol=1e-12)
    np.testing.assert_allclose(found.p_value, scipy.stats.t.sf(statistic, 35), rtol=1e-9)


# `weight_tests.holm` also checks its argument.
@pytest.mark.parametrize("adjust", [holm, weight_tests.holm])
def test_holms_p_values_with_ties_ones_and_a_nan(adjust):
    found = np.array([0.2, np.nan, 0.01, 0.2, 1.0])
    expected = [0.8, np.nan, 0.05, 0.8, 1.0]
    np.testing.assert_allclose(adjust(jnp.asarray(found)), expected, rtol=1e-12)


def test_weights_that_are_zero_have_no_sign():
    """The partial sums of the signs of 3, −2, 1 and three zeros are 1, 0, 1, 1, 1, 1."""
    found = symmetry(jnp.array([0.0, 3.0, -2.0, 0.0, 1.0, 0.0])).statistic
    np.testing.assert_allclose(found, 1 / 6**0.5, rtol=1e-12)
