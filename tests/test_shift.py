"""Exact earth mover distances in one dimension."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxnorm.shift import emd_1d


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_any_two_sample_sizes_against_scipy(n, m, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_t(2, n), rng.integers(-2, 3, m).astype(float)  # heavy tails, ties
    expected = scipy.stats.wasserstein_distance(x, y)
    np.testing.assert_allclose(emd_1d(jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-10)


def test_features_are_measured_one_by_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2, 3)), rng.normal(1.0, size=(20, 2, 3))
    found = emd_1d(jnp.asarray(x), jnp.asarray(y))
    for i, j in np.ndindex(2, 3):
        expected = scipy.stats.wasserstein_distance(x[:, i, j], y[:, i, j])
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-12)


def test_a_shift_is_measured_exactly_and_scales_are_units(key):
    x = jax.random.normal(key, (50, 4))
    np.testing.assert_allclose(emd_1d(x, x + 3), 3, rtol=1e-12)
    np.testing.assert_allclose(emd_1d(5 * x, 0 * x), 5 * jnp.abs(x).mean(0), rtol=1e-12)


def test_the_law_of_two_gaussians(key):
    # W₁(N(0, 1), N(0, 4)) = √(2/π).
    x, y = jax.random.normal(key, (2, 200_000))
    np.testing.assert_allclose(emd_1d(x, 2 * y), (2 / np.pi) ** 0.5, atol=0.01)


def test_float32_keeps_six_digits():
    rng = np.random.default_rng(1)
    x, y = rng.normal(1e3, 1.0, (2, 4096, 8))
    wide = emd_1d(jnp.asarray(x), jnp.asarray(y) + 1)
    narrow = emd_1d(jnp.asarray(x, "float32"), jnp.asarray(y, "float32") + np.float32(1))
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


def test_gradients(key):
    x, y = jax.random.normal(key, (2, 6, 2))
    check_grads(jax.jit(emd_1d), (x, y[:4]), order=1)


def test_nan_in_a_feature_stays_there():
    found = emd_1d(jnp.array([[0.0, jnp.nan], [1.0, 2.0]]), jnp.ones((3, 2)))
    assert found[0] == 0.5
    assert jnp.isnan(found[1])


def test_empty_samples_are_refused():
    with pytest.raises(ValueError, match="both samples must be non-empty; got 0 and 2"):
        emd_1d(jnp.ones((0, 1)), jnp.ones((2, 1)))
