import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import special, stats

import geometry
from geometry import filter_geometry, monte_carlo
from geometry.filters import gaussian_filter_geometry, norm_envelope, welch_bound
from tests.support.gradients import several_keys

measured, angles = jax.jit(filter_geometry), jax.jit(geometry.angles)
mean_slope = jax.jit(jax.grad(lambda x: filter_geometry(x).norm_mean))


@pytest.mark.parametrize("dims", [2, 3, 9, 64, 576])
def test_all_nine_moments_are_those_of_random_pairs(dims):
    std, draws = 0.7, 20_000
    a, b = std * np.random.default_rng(dims).normal(size=(2, draws, dims))
    norms = np.linalg.norm(a, axis=1)
    cosines = np.einsum("nd,nd->n", a, b) / norms / np.linalg.norm(b, axis=1)
    quantities = {
        "norm": norms,
        "cosine": cosines,
        "angle": np.arccos(cosines),
        "distance": np.linalg.norm(a - b, axis=1),
    }
    expected = gaussian_filter_geometry(dims, std=std)._asdict()
    for name, values in quantities.items():
        error = values.std() / draws**0.5
        assert abs(values.mean() - expected[f"{name}_mean"]) < 4 * error
        centred = values - values.mean()
        error = ((centred**4).mean() - values.var() ** 2) ** 0.5 / draws**0.5
        assert abs(values.var() - expected[f"{name}_variance"]) < 4 * error
    size = abs(cosines)
    assert abs(size.mean() - expected["cosine_size"]) < 4 * size.std() / draws**0.5


def test_moments_are_those_of_scipys_distributions():
    expected = gaussian_filter_geometry(9, std=2.0)
    chi, beta = stats.chi(9, scale=2), stats.beta(4, 4)
    np.testing.assert_allclose(expected.norm_mean, chi.mean(), rtol=1e-12)
    np.testing.assert_allclose(expected.norm_variance, chi.var(), rtol=1e-10)
    np.testing.assert_allclose(expected.cosine_variance, 4 * beta.var(), rtol=1e-12)
    np.testing.assert_allclose(expected.angle_variance, special.polygamma(1, 4.5) / 2, rtol=1e-10)
    np.testing.assert_allclose(expected.distance_variance, 2 * chi.var(), rtol=1e-10)


def test_a_layer_of_gaussian_filters_has_them(key):
    # The variances over pairs are not in this list. They are biased, because pairs are dependent
    # and the mean of the layer is subtracted.
    unbiased = ("norm_mean", "norm_variance", "cosine_mean", "cosine_size", "distance_mean")
    expected = gaussian_filter_geometry(40, std=0.5)._asdict()

    def error(key):
        found = filter_geometry(0.5 * jax.random.normal(key, (24, 40)))._asdict()
        return jnp.stack([found[name] - expected[name] for name in unbiased])

    mean, stderr, _ = monte_carlo(error, key, 400)
    assert (abs(mean) < 5 * stderr).all()


def test_a_layer_by_hand():
    found = measured(jnp.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
    np.testing.assert_allclose(found.norm_mean, 2)
    np.testing.assert_allclose(found.norm_variance, 1)
    np.testing.assert_allclose(found.cosine_mean, -1 / 3, rtol=1e-12)
    np.testing.assert_allclose(found.cosine_size, 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(found.angle_mean, 2 * np.pi / 3)
    np.testing.assert_allclose(found.distance_mean, (5**0.5 + 4 + 13**0.5) / 3)
    # The two vectors of one pair are opposite. The other two pairs are orthogonal.
    np.testing.assert_allclose(found.cosine_variance, 2 / 9)
    np.testing.assert_allclose(found.angle_variance, (np.pi / 2) ** 2 * 2 / 9)
    np.testing.assert_allclose(found.distance_variance, np.var([5**0.5, 4, 13**0.5]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_filters_with_a_right_angle_have_the_cosine_zero(dtype):
    found = filter_geometry(jnp.diag(jnp.array([3.0, 3.0, 5.0], dtype)))
    assert found.cosine_mean == found.cosine_variance == found.cosine_size == 0


def test_differences_do_not_vanish_with_the_dimension():
    for dims in (64, 10_000):
        norms = 2 * gaussian_filter_geometry(dims).norm_variance
        # The variance of the difference of two norms tends to std² = 1. If two norms became equal,
        # the variance of their difference would tend to 0.
        assert abs(norms - 1) < 0.01
    v = np.random.default_rng(0).normal(size=(3, 40_000, 64))
    difference = np.linalg.norm(v[0] - v[1], axis=1) - np.linalg.norm(v[0] - v[2], axis=1)
    assert abs(difference.var() - 1.5) < 5 * 1.5 * (2 / 40_000) ** 0.5


def test_distances_that_share_a_filter_have_correlation_a_quarter():
    v = np.random.default_rng(0).normal(size=(3, 40_000, 9))
    first, second = (np.square(v[0] - other).sum(1) for other in v[1:])
    assert abs(np.corrcoef(first, second)[0, 1] - 0.25) < 5 / 40_000**0.5


def test_norms_deviate_by_less_than_their_envelope():
    v = np.random.default_rng(0).normal(size=(200, 64, 36))
    error = abs(np.linalg.norm(v, axis=2) - float(gaussian_filter_geometry(36).norm_mean))
    assert np.mean(error.max(1) > norm_envelope(64)) <= 0.05
    # The largest error exceeds half of the bound 3.96, so the bound is not much too large.
    assert error.max() > 2


@pytest.mark.parametrize(("num_filters", "dims"), [(8, 3), (256, 64), (5, 4)])
def test_welch(num_filters, dims, key):
    x = jax.random.normal(key, (num_filters, dims))
    cosine = np.abs(np.cos(angles(x)))[np.triu_indices(num_filters, 1)].max()
    assert cosine >= welch_bound(num_filters, dims) > 0


def test_a_simplex_attains_welchs_bound():
    simplex = jnp.asarray(np.eye(5) - 1 / 5)  # five vectors that span four dimensions
    cosine = np.abs(np.cos(angles(simplex)))[0, 1]
    np.testing.assert_allclose(cosine, welch_bound(5, 4), rtol=1e-12)
    assert welch_bound(1, 1) == welch_bound(4, 4) == welch_bound(3, 7) == 0


@several_keys
def test_gradients(key):
    check_grads(measured, (jax.random.normal(key, (4, 5)),), order=1, modes=["rev"])


def test_impossible_arguments():
    with pytest.raises(ValueError, match="at least 2 samples; got 1"):
        filter_geometry(jnp.ones((1, 3)))
    with pytest.raises(ValueError, match="dims must be at least 2; got 1"):
        gaussian_filter_geometry(1)
    for num_filters, delta in ((3, 1.0), (3, 0.0), (0, 0.05), (3, np.nan)):
        with pytest.raises(
            ValueError,
            match=rf"delta must lie in \(0, 1\); got num_filters {num_filters} and delta {delta}",
        ):
            norm_envelope(num_filters, delta=delta)
    for sizes in ((0, 2), (2, 0)):
        with pytest.raises(
            ValueError, match="at least 1; got num_filters {} and dims {}".format(*sizes)
        ):
            welch_bound(*sizes)
    with pytest.raises(ValueError, match="std must be positive; got 0"):
        gaussian_filter_geometry(9, std=0.0)


@pytest.mark.parametrize("size", [1e-20, 1e18])
def test_filters_of_any_size_in_float32(size, key):
    x = jax.random.normal(key, (4, 5), jnp.float32)
    moments, small = measured(x), measured(size * x)
    np.testing.assert_allclose(small.norm_mean, size * moments.norm_mean, rtol=1e-5)
    np.testing.assert_allclose(small.angle_mean, moments.angle_mean, rtol=1e-5)
    assert jnp.isfinite(mean_slope(size * x)).all()
