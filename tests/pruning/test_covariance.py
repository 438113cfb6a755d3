"""Tests of the diagnostics of the covariance of filters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pruning import weight_tests
from tests.support.jitted import jitted

covariance = jitted(weight_tests.covariance)
covariance_report = jitted(weight_tests.covariance_report)


def test_covariance_is_numpys_and_the_gram_matrix_less_means(key):
    filters = 1 + jax.random.normal(key, (6, 10))
    np.testing.assert_allclose(covariance(filters), np.cov(filters), rtol=1e-12)
    means = filters.mean(1)
    gram = filters @ filters.T / 10 - means[:, None] * means[None, :]
    np.testing.assert_allclose(0.9 * covariance(filters), gram, atol=1e-14)


def test_the_spread_of_three_variances_is_standard():
    drawn = np.random.default_rng(0).standard_normal((300, 3, 400))
    z = jax.jit(lambda x: jax.lax.map(covariance_report, x))(drawn).diagonal
    assert abs(z.mean()) < 0.25
    assert 0.85 < z.std() < 1.2


@pytest.mark.parametrize("shape", [(64, 27), (64, 144)])
def test_z_scores_of_gaussian_filters_are_standard(shape):
    drawn = 0.3 * np.random.default_rng(0).standard_normal((300, *shape), np.float32)
    found = jax.jit(lambda x: jax.lax.map(covariance_report, x))(drawn)
    for z in (found.diagonal, found.off_diagonal, found.sphericity):
        assert abs(z.mean()) < 0.25
        assert 0.85 < z.std() < 1.2
    n, dims = shape
    np.testing.assert_allclose(found.off_diagonal_mass.mean(), (n - 1) / (dims + 1), rtol=0.05)


def test_eigenvalues_of_gaussian_filters_fill_the_interval_of_marchenko_and_pastur(key):
    found = covariance_report(jax.random.normal(key, (64, 576)))
    np.testing.assert_allclose([found.low, found.high], [0.444, 1.779], atol=5e-4)
    np.testing.assert_allclose([found.smallest, found.largest], [0.461, 1.741], atol=0.04)
    values = np.linalg.eigvalsh(np.cov(jax.random.normal(key, (64, 27))))
    more = covariance_report(jax.random.normal(key, (64, 27)))
    np.testing.assert_allclose(more.smallest, values[-26] / values.mean(), rtol=1e-9)


def test_orthogonal_filters_are_seen(key):
    rotation, _ = np.linalg.qr(jax.random.normal(key, (576, 576)))
    found = covariance_report(jnp.asarray(rotation[:64]))
    assert -40 < found.off_diagonal < -25
    assert found.diagonal < -4


def test_correlated_filters_are_seen(key):
    filters = jax.random.normal(key, (64, 576))
    found = covariance_report(filters + 0.3 * filters[:1])
    assert found.off_diagonal > 10
    assert found.largest > 1.5 * found.high


@pytest.mark.usefixtures("unchecked")
def test_too_few_filters_or_dims_are_refused():
    with pytest.raises(ValueError, match=r"2 filters and 3 dims; got .* = \(4, 2\)"):
        covariance_report(jnp.ones((4, 2)))


def in_numpy(filters):
    """The expected diagnostics, from NumPy's covariance and Pearson's correlations."""
    n, dims = filters.shape
    nu, c = dims - 1, np.cov(filters)
    c = c / np.trace(c) * n
    pairs = np.corrcoef(filters)[np.triu_indices(n, 1)] ** 2
    variance = 2 * (nu - 1) / (nu**2 * (nu + 2)) / len(pairs)
    u = np.trace((c - np.eye(n)) @ (c - np.eye(n))) / n
    mass = np.sum(c**2) - np.sum(np.diag(c) ** 2)
    values = np.sort(np.linalg.eigvalsh(c))
    return {
        "off_diagonal": (pairs.mean() - 1 / nu) / variance**0.5,
        "sphericity": (nu * u - n - 1) / 2,
        "off_diagonal_mass": mass / np.sum(np.diag(c) ** 2),
        "smallest": values[n - min(n, nu)],
        "largest": values[-1],
        "low": (1 - (n / nu) ** 0.5) ** 2,
        "high": (1 + (n / nu) ** 0.5) ** 2,
    }


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 7)])
def test_diagnostics_of_filters_of_unequal_lengths_are_those_of_numpy(shape):
    rng = np.random.default_rng(6)
    filters = 3 + 5 * rng.normal(size=shape) * np.linspace(1, 4, shape[0])[:, None]
    filters = filters + 2 * rng.normal(size=shape[1])
    found = covariance_report(jnp.asarray(filters))
    for name, expected in in_numpy(filters).items():
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 4), (5, 30), (10, 4)])
def test_z_scores_have_mean_zero_and_variance_one_for_few_filters_and_dims(shape):
    """Normal filters have mean 3 and variance 25, which the report must estimate from them."""
    drawn = np.random.default_rng(7).normal(3, 5, (10_000, *shape))
    found = jax.jit(jax.vmap(weight_tests.covariance_report))(drawn)
    for z in (np.asarray(found.diagonal), np.asarray(found.off_diagonal)):
        assert abs(z.mean()) < 4 * z.std() / len(z) ** 0.5
        assert abs(np.square(z).mean() - 1) < 4 * np.square(z).std() / len(z) ** 0.5
