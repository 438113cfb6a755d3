"""Tests with filters whose tails, scales and correlations are not those of Gaussian filters."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from pruning import l1_l2_correlation
from pruning.gaussian import (
    fit_filter_model,
    normal_kendall,
    normal_overlap,
    normal_spearman,
    scaled_l1_l2_correlation,
)
from tests.support.gradients import several_keys


def spearman(a, b) -> float:
    found: Any = scipy.stats.spearmanr(a, b)
    return float(found[0])


def kurtosis(shape) -> float:
    found: Any = scipy.stats.gennorm.stats(shape, moments="k")
    return float(found)


def draw(shape, spread, filters, dims, seed=0):
    rng = np.random.default_rng(seed)
    x = scipy.stats.gennorm.rvs(shape, size=(filters, dims), random_state=rng)
    return x * np.exp(spread * rng.standard_normal((filters, 1)))


@pytest.mark.parametrize(
    ("shape", "spread"), [(0.7, 0.0), (1.0, 0.05), (2.0, 0.0), (2.0, 0.02), (5.0, 0.03)]
)
def test_ranks_of_drawn_filters_are_as_expected(shape, spread):
    """For 10,000 filters, the standard error of Spearman's ρ is about (1 − ρ²)/100.

    The expected correlation is exact to first order in 1/dims; its error may be kurtosis/(2 dims).
    """
    v = draw(shape, spread, 10_000, 576)
    order = abs(kurtosis(shape)) / 576 / 2 + 0.003
    l1, l2 = np.abs(v).sum(1), np.square(v).sum(1)
    rho = scaled_l1_l2_correlation(576, shape=shape, spread=spread)
    expected = float(normal_spearman(rho, 10_000))
    found = spearman(l1, l2)
    assert abs(found - expected) < 5 * (1 - expected**2) / 100 + order
    kendall: Any = scipy.stats.kendalltau(l1, l2)
    assert abs(float(kendall[0]) - float(normal_kendall(rho))) < 0.01 + 2 * order
    lowest = (l1 < np.quantile(l1, 0.3)) & (l2 < np.quantile(l2, 0.3))
    assert abs(lowest.mean() / 0.3 - float(normal_overlap(rho, ratio=0.3))) < 0.01 + 2 * order


@pytest.mark.parametrize("dims", [1.0, 9.0, 576.0])
def test_gaussian_filters_of_one_scale_are_the_exact_special_case(dims):
    np.testing.assert_allclose(scaled_l1_l2_correlation(dims), l1_l2_correlation(dims), rtol=1e-12)


@pytest.mark.parametrize("shape", [0.7, 1.0, 4.0])
def test_the_limit_is_that_of_scipys_moments(shape):
    x = scipy.stats.gennorm(shape)
    m1, m2, m3, m4 = (x.expect(lambda x, k=k: abs(x) ** k) for k in (1, 2, 3, 4))
    deviations = np.array([[m2 - m1**2, m3 - m1 * m2], [m3 - m1 * m2, m4 - m2**2]])
    expected = deviations[0, 1] / np.sqrt(deviations[0, 0] * deviations[1, 1])
    found = scaled_l1_l2_correlation(1e8, shape=shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_fit_finds_what_was_drawn():
    for shape, spread in ((1.0, 0.3), (2.0, 0.1), (3.0, 0.0)):
        fit = fit_filter_model(jnp.asarray(draw(shape, spread, 400, 288)))
        assert abs(fit.shape / shape - 1) < 0.03
        noise = (kurtosis(shape) + 2) / (4 * 288)
        # The variance over 400 filters has this standard error.
        error = (2 / 400) ** 0.5 * (spread**2 + noise)
        assert abs(fit.spread**2 - spread**2) < 4 * error
        assert fit.effective_dims > 280


def test_the_effective_dimension_is_that_of_the_covariance():
    lag = np.abs(np.subtract.outer(np.arange(200), np.arange(200)))
    covariance = 0.5**lag
    x = np.random.default_rng(0).standard_normal((2000, 200)) @ np.linalg.cholesky(covariance).T
    expected = np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
    np.testing.assert_allclose(fit_filter_model(jnp.asarray(x)).effective_dims, expected, rtol=0.05)
    assert fit_filter_model(jnp.asarray(x), correlated=False).effective_dims == 200


def test_ranks_of_correlated_filters_follow_from_their_effective_dimension():
    """Spearman's ρ is as expected for the effective dimension of the filters, not for 144 dims."""
    rng = np.random.default_rng(1)
    rotation = np.linalg.qr(rng.standard_normal((144, 144)))[0]
    root = rotation * (1 + np.arange(144)) ** -0.35
    v = rng.standard_normal((8000, 144)) @ root.T * np.exp(0.03 * rng.standard_normal((8000, 1)))
    found = spearman(np.abs(v).sum(1), np.square(v).sum(1))
    effective = np.trace(root @ root.T) ** 2 / np.sum((root @ root.T) ** 2)

    def expected(effective_dims):
        rho = scaled_l1_l2_correlation(144, spread=0.03, effective_dims=effective_dims)
        return float(normal_spearman(rho, 8000))

    assert effective < 100
    assert abs(found - expected(effective)) < 0.005 < abs(found - expected(144)) / 2


@pytest.mark.parametrize(("dims", "power"), [(144, 0.5), (144, 1.0), (27, 1.0), (27, 2.0)])
def test_correlated_weights_have_the_correlation_of_draws(dims, power):
    """The spectrum of the covariance falls as 1/k^power, which leaves 94, 24, 12 and 4 dims."""
    rng = np.random.default_rng(2)
    rotation = np.linalg.qr(rng.standard_normal((dims, dims)))[0]
    root = rotation * (1 + np.arange(dims)) ** (-power / 2)
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    v = rng.standard_normal((8000, dims)) @ root.T
    found = np.corrcoef(np.log(np.abs(v).sum(1)), np.log(np.square(v).sum(1)))[0, 1]
    effective = dims**2 / np.sum((root @ root.T) ** 2)
    expected = scaled_l1_l2_correlation(dims, effective_dims=effective)
    assert abs(float(expected) - found) < 0.003


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_correlation_exceeds_one(dtype):
    """A correlation above 1 would have no rank correlation."""
    shape, dims, share, spread = np.meshgrid(
        [0.3, 1, 2, 8, 100], [1, 2, 27, 4608], [0, 0.01, 0.5, 1], [0, 1e-3, 0.1, 100]
    )
    shape, dims, share, spread = (jnp.asarray(a, dtype) for a in (shape, dims, share, spread))
    found = scaled_l1_l2_correlation(
        dims, shape=shape, spread=spread, effective_dims=1 + share * (dims - 1)
    )
    assert 0 < found.min() <= found.max() <= 1
    assert np.isfinite(normal_spearman(found, 64)).all()


def test_normal_pairs_by_hand_and_scipy():
    np.testing.assert_allclose(normal_spearman(0.4, 2), 2 / np.pi * np.arcsin(0.4), rtol=1e-12)
    np.testing.assert_allclose(normal_spearman(-0.4, 9), -normal_spearman(0.4, 9), rtol=1e-12)
    assert normal_spearman(0.0, 9) == 0
    assert normal_spearman(1.0, 9) == 1
    for rho in (-0.6, 0.0, 0.9):
        z = scipy.stats.norm.ppf(0.2)
        covariance: Any = [[1, rho], [rho, 1]]
        both = scipy.stats.multivariate_normal.cdf([z, z], [0, 0], covariance)
        np.testing.assert_allclose(normal_overlap(rho, ratio=0.2), both / 0.2, atol=1e-5)


@jax.jit
def correlation(dims, shape, spread):
    return scaled_l1_l2_correlation(dims, shape=shape, spread=spread)


@several_keys
def test_gradients(key):
    factors = jax.random.uniform(key, (3,), minval=0.7, maxval=1.5)
    arguments = (99 * factors[0], 1.3 * factors[1], 0.2 * factors[2])
    check_grads(correlation, arguments, order=1, modes=["rev"])


def test_one_filter_has_no_spread():
    with pytest.raises(ValueError, match="at least 2, because one filter has no spread; got 1"):
        fit_filter_model(jnp.ones((1, 4)))


@pytest.mark.parametrize(
    "function",
    [
        normal_kendall,
        partial(normal_overlap, ratio=0.3),
        partial(normal_overlap, ratio=0.5),
        lambda r: normal_spearman(r, 5),
    ],
)
def test_a_correlation_above_one_gives_nan(function):
    found = function(jnp.array([-1.001, -1.0, 0.0, 1.0, 1.001]))
    assert np.isnan(found).tolist() == [True, False, False, False, True]
    assert np.isnan(function(1.001))


def test_the_effective_dimension_of_three_filters_has_three_cosines():
    """The squared cosines are 0.36, 0.64 and 0, so their mean is 1/3."""
    units = jnp.array([[1.0, 0, 0, 0], [0.6, 0.8, 0, 0], [0, 1.0, 0, 0]])
    fit = fit_filter_model(units * jnp.array([[2.0], [3.0], [5.0]]))
    np.testing.assert_allclose(fit.effective_dims, 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parallel_filters_have_one_effective_dimension(dtype):
    # For this direction, rounding in float32 makes 1/cos² smaller than 1.
    direction = np.random.default_rng(6).normal(size=37)
    filters = jnp.asarray(np.outer(np.linspace(1, 3, 9), direction), dtype)
    fit = jax.jit(fit_filter_model)(filters)
    np.testing.assert_allclose(fit.effective_dims, 1, rtol=1e-6)
    assert fit.effective_dims >= 1
    assert np.isfinite(scaled_l1_l2_correlation(7, effective_dims=fit.effective_dims))


@pytest.mark.parametrize("correlated", [True, False])
def test_the_spread_is_in_excess_of_the_noise_of_as_many_dims(correlated):
    """The squared spread is Var(log l2) − (κ + 2)/(4 dims) for weights of excess kurtosis κ."""
    lag = np.abs(np.subtract.outer(np.arange(60), np.arange(60)))
    rng = np.random.default_rng(3)
    root = np.linalg.cholesky(0.7**lag).T
    x = rng.standard_normal((300, 60)) @ root * np.exp(0.3 * rng.standard_normal((300, 1)))
    fit = fit_filter_model(jnp.asarray(5 * x), correlated=correlated)
    dims = float(fit.effective_dims)
    assert (dims == 60) is not correlated
    noise = (kurtosis(float(fit.shape)) + 2) / (4 * dims)
    expected = np.log(np.linalg.norm(x, axis=1)).var(ddof=1) - noise
    np.testing.assert_allclose(fit.spread**2, expected, rtol=0.02)
    assert noise > 0.04 * expected


@pytest.mark.parametrize("correlated", [True, False])
def test_scales_add_to_the_spread_the_variance_that_they_add_to_logarithms(correlated):
    rng = np.random.default_rng(4)
    x, scales = rng.laplace(size=(5, 40)), np.exp([0.0, 1.0, -2.0, 0.5, 3.0])
    fits = [
        fit_filter_model(jnp.asarray(y), correlated=correlated)
        for y in (x * scales[:, None], x * scales[::-1, None] ** 2)
    ]
    logs = [np.log(np.linalg.norm(x, axis=1) * s) for s in (scales, scales[::-1] ** 2)]
    expected = logs[1].var(ddof=1) - logs[0].var(ddof=1)
    np.testing.assert_allclose(fits[1].spread ** 2 - fits[0].spread ** 2, expected, rtol=1e-9)
    if not correlated:  # all 40 dims are effective, although there are only 5 filters
        assert float(fits[0].effective_dims) == 40


def test_a_filter_of_zeros_has_no_scale_to_fit():
    x = np.random.default_rng(5).normal(size=(5, 8))
    x[2] = 0
    assert np.isnan(jax.jit(fit_filter_model)(jnp.asarray(x))).all()
