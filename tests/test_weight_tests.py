"""Tests that the weights of a layer are normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from pruning import ks_normal


@pytest.mark.parametrize("n", [1, 300])
@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1), (0.1, 1.0), (-0.5, 0.3), (0.0, 4.0)])
def test_ks_with_a_known_scale_is_scipys(n, mean, scale):
    x = np.random.default_rng(n).normal(mean, 1.0, n)
    expected = scipy.stats.kstest(x, scipy.stats.norm(scale=scale).cdf, method="asymp")
    found = ks_normal(jnp.asarray(x), scale=scale)
    np.testing.assert_allclose(found[0], expected.statistic, rtol=1e-12)
    np.testing.assert_allclose(found[1], scipy.special.kolmogorov(n**0.5 * found[0]), rtol=1e-10)


@pytest.mark.parametrize("n", [1, 300])
def test_entries_at_the_quantiles_are_as_near_as_can_be(n):
    x = scipy.stats.norm(scale=0.02).ppf((np.arange(n) + 0.5) / n)
    statistic, p_value = ks_normal(jnp.asarray(x), scale=0.02)
    np.testing.assert_allclose(statistic, 0.5 / n, rtol=1e-12)
    np.testing.assert_allclose(p_value, scipy.special.kolmogorov(0.5 / n**0.5), rtol=1e-12)


def test_a_constant_is_far_from_normal():
    statistic, p_value = ks_normal(jnp.ones(300))
    np.testing.assert_allclose(statistic, scipy.stats.norm.cdf(1), rtol=1e-12)
    assert 0 < p_value < 1e-150


@pytest.mark.parametrize(
    ("law", "distance"), [("uniform", 0.057207), ("truncated_normal", 0.016665)]
)
def test_distance_of_initializers_from_the_normal_of_equal_variance(law, distance, key):
    n = 100_000
    draw = {
        "uniform": lambda: jax.random.uniform(key, (n,), minval=-1.0),
        "truncated_normal": lambda: jax.random.truncated_normal(key, -2.0, 2.0, (n,)),
    }[law]
    statistic, p_value = ks_normal(draw())
    assert abs(statistic - distance) < 1.63 / n**0.5
    assert p_value < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "sizes"), [(1.0, (0.102, 0.051, 0.010)), (None, (0.086, 0.043, 0.008))]
)
def test_size_with_the_scale_known_and_estimated(scale, sizes, key):
    draws = 2000
    x = jax.random.normal(key, (draws, 500), jnp.float32)
    _, p_value = jax.vmap(lambda x: ks_normal(x, scale=scale))(x)
    for nominal, size in zip((0.10, 0.05, 0.01), sizes, strict=True):
        found = jnp.mean(p_value < nominal)
        assert abs(found - size) < 4 * (size / draws) ** 0.5


def test_the_statistic_has_no_unit_and_no_order(key):
    x = jax.random.normal(key, (3, 10, 10))
    expected = ks_normal(x)
    np.testing.assert_allclose(ks_normal(1e-6 * x.ravel()[::-1]), expected, rtol=1e-9)
    np.testing.assert_allclose(ks_normal(5 * x, scale=5.0), ks_normal(x, scale=1.0), rtol=1e-9)


def test_bfloat16_weights_are_tested_in_float32(key):
    x = jax.random.normal(key, (300,)).astype(jnp.bfloat16)
    statistic, p_value = ks_normal(x, scale=1.0)
    assert statistic.dtype == p_value.dtype == jnp.float32
    expected = scipy.stats.kstest(np.asarray(x, float), "norm", method="asymp")
    np.testing.assert_allclose(statistic, expected.statistic, rtol=1e-5)
    np.testing.assert_allclose(p_value, scipy.special.kolmogorov(300**0.5 * statistic), rtol=1e-5)


def test_zeros_have_no_scale():
    assert jnp.isnan(jnp.stack(ks_normal(jnp.zeros(300)))).all()


def test_no_weights_cannot_be_tested():
    with pytest.raises(ValueError, match=r"at least one weight; got shape \(0, 3\)"):
        ks_normal(jnp.zeros((0, 3)))


def test_ks_can_be_differentiated_batched_and_compiled(key):
    x = jax.random.normal(key, (3, 300))
    check_grads(jax.jit(ks_normal), (x[0],), order=1, rtol=1e-4)
    scale = jnp.array([0.5, 1.0, 2.0])
    found = jax.jit(jax.vmap(lambda x, scale: ks_normal(x, scale=scale)))(x, scale)
    expected = [ks_normal(row, scale=float(s)) for row, s in zip(x, scale, strict=True)]
    np.testing.assert_allclose(jnp.stack(found), np.array(expected).T, rtol=1e-12)
