"""Tests of the distance of weights to a Gaussian, and of hypothesis tests by this distance."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from pruning import ks_normal, lilliefors
from pruning.weight_tests import anderson_darling, ks_bound, ks_distance, ks_equivalence
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

compiled_ks_normal = jax.jit(ks_normal)


@pytest.mark.parametrize("n", [1, 300])
@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1), (0.1, 1.0), (-0.5, 0.3), (0.0, 4.0)])
def test_ks_with_a_known_scale_is_scipys(n, mean, scale):
    x = np.random.default_rng(n).normal(mean, 1.0, n)
    expected = scipy.stats.kstest(x, scipy.stats.norm(scale=scale).cdf, method="asymp")
    found = jitted(ks_normal)(jnp.asarray(x), scale=scale)
    np.testing.assert_allclose(found[0], expected.statistic, rtol=1e-12)
    np.testing.assert_allclose(found[1], scipy.special.kolmogorov(n**0.5 * found[0]), rtol=1e-10)


@pytest.mark.parametrize("n", [1, 300])
def test_entries_at_the_quantiles_are_as_near_as_can_be(n):
    x = scipy.stats.norm(scale=0.02).ppf((np.arange(n) + 0.5) / n)
    statistic, p_value = compiled_ks_normal(jnp.asarray(x), scale=0.02)
    np.testing.assert_allclose(statistic, 0.5 / n, rtol=1e-12)
    np.testing.assert_allclose(p_value, scipy.special.kolmogorov(0.5 / n**0.5), rtol=1e-12)


def test_a_constant_is_far_from_normal():
    statistic, p_value = compiled_ks_normal(jnp.ones(300))
    np.testing.assert_allclose(statistic, scipy.stats.norm.cdf(1), rtol=1e-12)
    assert 0 < p_value < 1e-150


@pytest.mark.parametrize(
    ("distribution", "distance"), [("uniform", 0.057207), ("truncated_normal", 0.016665)]
)
def test_distance_of_initializers_from_the_normal_of_equal_variance(distribution, distance, key):
    n = 100_000
    draw = {
        "uniform": lambda: jax.random.uniform(key, (n,), minval=-1.0),
        "truncated_normal": lambda: jax.random.truncated_normal(key, -2.0, 2.0, (n,)),
    }[distribution]
    statistic, p_value = compiled_ks_normal(draw())
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
    expected = compiled_ks_normal(x)
    np.testing.assert_allclose(compiled_ks_normal(1e-6 * x.ravel()[::-1]), expected, rtol=1e-9)
    expected = compiled_ks_normal(x, scale=1.0)
    np.testing.assert_allclose(compiled_ks_normal(5 * x, scale=5.0), expected, rtol=1e-9)


def test_bfloat16_weights_are_tested_in_float32(key):
    x = jax.random.normal(key, (300,)).astype(jnp.bfloat16)
    statistic, p_value = jitted(ks_normal)(x, scale=1.0)
    assert statistic.dtype == p_value.dtype == jnp.float32
    expected = scipy.stats.kstest(np.asarray(x, float), "norm", method="asymp")
    np.testing.assert_allclose(statistic, expected.statistic, rtol=1e-5)
    np.testing.assert_allclose(p_value, scipy.special.kolmogorov(300**0.5 * statistic), rtol=1e-5)


def test_zeros_have_no_scale():
    assert np.isnan(compiled_ks_normal(jnp.zeros(300))).all()


def test_no_weights_cannot_be_tested():
    with pytest.raises(ValueError, match=r"at least one element; got shape \(0, 3\)"):
        ks_normal(jnp.zeros((0, 3)))


@several_keys
def test_ks_can_be_differentiated_batched_and_compiled(key):
    x = jax.random.normal(key, (3, 300))
    # The step `eps` is small, because the distance has kinks.
    check_grads(jax.jit(ks_normal), (x[0],), order=1, rtol=1e-4, eps=1e-6)
    scale = jnp.array([0.5, 1.0, 2.0])
    found = jax.jit(jax.vmap(lambda x, scale: ks_normal(x, scale=scale)))(x, scale)
    expected = [compiled_ks_normal(row, scale=float(s)) for row, s in zip(x, scale, strict=True)]
    np.testing.assert_allclose(np.stack(found), np.array(expected).T, rtol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_equal_weights_share_the_derivative(sign):
    """The distance is largest at the three equal weights. All weights move together."""
    x = sign * np.array([-0.4, 0.9, -0.4, 1.3, -0.4])
    normal = scipy.stats.norm(scale=1.5)
    above, below = (scipy.stats.kstest(x + step, normal.cdf).statistic for step in (1e-6, -1e-6))
    expected = (above - below) / 2e-6
    found = jax.grad(lambda x: ks_distance(x, scale=1.5))(jnp.asarray(x))
    np.testing.assert_allclose(found, expected * (np.abs(x) == 0.4) / 3, rtol=1e-5)


def large_samples():
    rng = np.random.default_rng(0)
    return {
        "normal": rng.normal(size=200_000),
        "uniform": rng.uniform(-1.7, 1.7, 40_000),
        "heavy": rng.standard_t(2, 100_000),
        "ties": np.round(rng.normal(size=50_000), 2),
        "zeros": np.where(rng.uniform(size=50_000) < 0.5, 0, rng.normal(size=50_000)),
        "quantiles": scipy.stats.norm.ppf((np.arange(60_000) + 0.5) / 60_000),
        "constant": np.ones(40_000),
    }


@pytest.mark.parametrize("name", large_samples())
def test_counting_finds_scipys_distance_to_1e_7(name):
    x = large_samples()[name].astype(np.float32)
    expected = scipy.stats.kstest(x.astype(float), "norm", method="asymp").statistic
    assert abs(float(jitted(ks_distance)(jnp.asarray(x), scale=1.0)) - expected) < 1e-7


def test_counted_distances_can_be_batched_and_differentiated(key):
    layers = 1.1 * jax.random.normal(key, (2, 2**15), jnp.float32)
    found = jax.jit(jax.vmap(ks_distance))(layers)
    expected = [jitted(ks_distance)(x.astype(float)) for x in layers]
    np.testing.assert_allclose(found, expected, atol=1e-7)

    @jax.jit
    def slope(x):
        return jax.grad(lambda scale: ks_distance(x, scale=scale))(jnp.ones((), x.dtype))

    np.testing.assert_allclose(slope(layers[0]), slope(layers[0].astype(float)), rtol=1e-4)


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("test", [ks_bound, ks_distance, partial(ks_equivalence, margin=0.3)])
def test_a_kernel_is_tested_as_the_vector_of_its_weights(test, scale, key):
    kernel = jax.random.normal(key, (3, 2, 4, 5))
    expected = test(kernel.ravel(), scale=scale)
    for x in (kernel, kernel.reshape(6, -1), kernel.reshape(-1, 1)):
        np.testing.assert_allclose(test(x, scale=scale), expected, rtol=1e-12)


def test_the_bound_and_the_equivalence_test_are_each_others_inverse(key):
    x = jax.random.normal(key, (150_000,))
    equivalence = jitted(ks_equivalence)
    bound = jitted(ks_bound)(x, scale=1.0)
    statistic, p_value = equivalence(x, margin=bound, scale=1.0)
    np.testing.assert_allclose(p_value, 0.05, rtol=1e-9)
    assert statistic == jitted(ks_distance)(x, scale=1.0)
    # Approximately 74,000 weights suffice to show equivalence with margin 0.01 in 95 % of cases.
    assert equivalence(x, margin=0.01)[1] < 0.05
    assert equivalence(x[:20_000], margin=0.01)[1] > 0.05
    assert equivalence(x, margin=statistic / 2, scale=1.0)[1] == 1


@pytest.mark.parametrize("test", [lilliefors, partial(lilliefors, mean_known=True)])
def test_p_values_of_lilliefors_are_uniform_for_normal_weights(test, key):
    x = np.random.default_rng(1).normal(0, 2, (100, 100)).astype(np.float32)
    p_values = jax.jit(jax.vmap(lambda x: test(key, x, samples=199)[1]))(x)
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean_known", "points"), [(True, (1.17, 1.31, 1.59)), (False, (0.817, 0.889, 1.037))]
)
def test_upper_points_of_the_distance_with_parameters_estimated(mean_known, points, key):
    x = jax.random.normal(key, (6000, 100), jnp.float32)
    x = x if mean_known else x - x.mean(1, keepdims=True)
    found = np.quantile(10 * jax.vmap(ks_distance)(x), (0.9, 0.95, 0.99))
    np.testing.assert_allclose(found, points, atol=0.025)


def test_plain_p_values_mean_nothing_with_the_mean_estimated(key):
    x = jax.random.normal(key, (2000, 100), jnp.float32)
    x = x - x.mean(1, keepdims=True)
    _, p_value = jax.jit(jax.vmap(ks_normal))(x)
    assert jnp.mean(p_value < 0.05) < 0.002


def test_anderson_and_darlings_statistic_is_scipys_sum_and_its_p_values_uniform(key):
    x = np.random.default_rng(2).normal(0, 0.1, (100, 60))
    z = np.sort(x[0]) / np.sqrt(np.mean(x[0] ** 2))
    i = np.arange(1, 61)
    logs = scipy.stats.norm.logcdf(z) + scipy.stats.norm.logsf(z[::-1])
    statistic, p_value = jax.jit(jax.vmap(lambda x: anderson_darling(key, x, samples=199)))(x)
    np.testing.assert_allclose(statistic[0], -60 - np.sum((2 * i - 1) * logs) / 60, rtol=1e-10)
    assert scipy.stats.kstest(p_value, "uniform").pvalue > 0.01
    heavy = jnp.asarray(np.random.default_rng(3).standard_t(2, 300))
    assert anderson_darling(key, heavy, samples=99)[1] == 0.01


def test_off_cpus_weights_are_sorted_once_and_nothing_is_scattered():
    weights = jax.ShapeDtypeStruct((2**16,), jnp.float32)
    traced = jax.jit(ks_distance).trace(weights)
    programs = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "tpu", "cuda")}
    assert "stablehlo.scatter" in programs["cpu"]
    for platform in ("tpu", "cuda"):
        assert "stablehlo.scatter" not in programs[platform]
        assert programs[platform].count("stablehlo.sort") == 1


def test_anderson_and_darlings_statistic_of_a_million_float32_weights(key):
    x = jax.random.normal(key, (2, 2**20), jnp.float32)

    @jax.jit
    def statistic(x):
        return anderson_darling(key, x, samples=1)[0]

    found = np.array([jax.vmap(statistic)(x), [statistic(row) for row in x]])
    z = np.sort(np.asarray(x, float), axis=1)
    z = z / np.sqrt(np.mean(z**2, axis=1, keepdims=True))
    odd = 2 * np.arange(z.shape[1]) + 1
    logs = scipy.stats.norm.logcdf(z) + scipy.stats.norm.logsf(z[:, ::-1])
    expected = -z.shape[1] - np.mean(odd * logs, axis=1)
    np.testing.assert_allclose(found, [expected, expected], atol=2e-3)


@pytest.mark.parametrize(
    ("test", "entries"),
    [
        (anderson_darling, 1),
        (anderson_darling, 600),
        *(pytest.param(lilliefors, entries, marks=pytest.mark.slow) for entries in (1, 600)),
    ],
)
def test_normal_samples_may_be_drawn_in_any_batches(test, entries, key, monkeypatch):
    x = jax.random.normal(key, (60,))

    def p_value():
        return jax.jit(lambda key, x: test(key, x, samples=99)[1])(key, x)

    together = p_value()
    monkeypatch.setattr("pruning.weight_tests._ks.BATCH", entries)
    assert p_value() == together


def test_the_distance_of_a_known_mean_is_larger_by_chance(key):
    """A distance of 1/√n has p ≈ 0.22 if the mean is known, and p ≈ 0.02 if it is estimated."""
    x = scipy.stats.norm.ppf((np.arange(400) + 0.5) / 400)
    x = jnp.asarray(np.where(np.abs(x) < 0.125, np.sign(x) * 0.125, x))
    np.testing.assert_allclose(20 * jitted(ks_distance)(x), 1.0, atol=0.05)
    test = jitted(lilliefors)
    known, estimated = (test(key, x, mean_known=m, samples=499) for m in (True, False))
    np.testing.assert_allclose(known.statistic, estimated.statistic, rtol=1e-6)
    assert known.p_value > 0.1
    assert estimated.p_value < 0.05


@pytest.mark.parametrize("mean_known", [True, False])
@pytest.mark.parametrize("test", [lilliefors, anderson_darling])
def test_statistics_about_a_known_and_an_estimated_mean_are_scipys(test, mean_known, key):
    """If the mean is known to be 0, the expected weights are divided by their root mean square."""
    x = np.random.default_rng(6).normal(3, 5, (4, 10))
    z = x.ravel() if mean_known else x.ravel() - x.mean()
    z = np.sort(z / np.sqrt(np.mean(z**2)))
    if test is lilliefors:
        expected = scipy.stats.kstest(z, "norm").statistic
    else:
        logs = scipy.stats.norm.logcdf(z) + scipy.stats.norm.logsf(z[::-1])
        expected = -40 - np.sum((2 * np.arange(40) + 1) * logs) / 40
    found = jitted(test)(key, jnp.asarray(x), mean_known=mean_known, samples=19)
    np.testing.assert_allclose(found.statistic, expected, rtol=1e-9)


def test_the_p_value_of_equivalence_has_two_tails():
    """n weights at the quantiles of N(0, 1) have the distance 1/(2n) from N(0, 1)."""
    n, margin = 100, 0.2
    x = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    p_value = ks_equivalence(jnp.asarray(x), margin=margin, scale=1.0).p_value
    np.testing.assert_allclose(p_value, 2 * np.exp(-2 * n * (margin - 0.5 / n) ** 2), rtol=1e-9)


@pytest.mark.parametrize("x", [[-7.0], [2.0, 5.0]])
@pytest.mark.parametrize("test", [lilliefors, anderson_darling])
def test_samples_whose_statistic_equals_that_of_the_data_count(test, x, key):
    """All single weights have the same statistic, and so do all pairs with an estimated mean."""
    assert jitted(test)(key, jnp.array(x), mean_known=len(x) == 1, samples=99).p_value == 1
