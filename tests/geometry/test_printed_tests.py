"""Two tests of weights, as the paper prints them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from claims.cwda.spread_and_mean import mean_t_test, std_t_test
from pruning.weight_tests import filter_stds
from tests.support.sizes_of_tests import assert_size, at_the_boundary, p_values


@pytest.fixture
def layers(key):
    """500 layers of 16 Gaussian filters of 144 weights, all with standard deviation 0.1."""
    return 0.1 * jax.random.normal(key, (500, 16, 144))


def test_the_literal_t_test_has_not_its_size(key):
    layers = at_the_boundary(key, 2000, 16, 144, 0.2)
    assert_size(p_values(lambda x: std_t_test(x, margin=0.2), layers), 0.05, 0.176)


def test_the_literal_t_test_is_scipys(layers):
    stds = np.asarray(filter_stds(layers[0]))
    expected: Any = scipy.stats.ttest_1samp(
        (stds / stds.mean() - 1) ** 2, 0.05**2, alternative="less"
    )
    np.testing.assert_allclose(std_t_test(layers[0], margin=0.05), expected, rtol=1e-8)


def test_the_literal_test_of_the_mean_depends_on_the_unit(key):
    x = jax.random.normal(key, (2000, 2000), jnp.float32)
    assert_size(p_values(lambda x: mean_t_test(x, margin=0.05), 0.02 * x), 0.05, 0.0912)
    assert np.mean(p_values(lambda x: mean_t_test(x, margin=0.05), 20 * x) < 0.05) == 0
