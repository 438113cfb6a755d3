"""Tests of weights against generalized Gaussian distributions, compared with SciPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.test_util import check_grads

from pruning import weight_tests
from pruning.weight_tests import ks_generalized_gaussian
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

fit_generalized_gaussian = jitted(weight_tests.fit_generalized_gaussian)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_the_fit_is_scipys(shape, scale):
    x = scipy.stats.gennorm(shape, scale=scale).rvs(300, random_state=0)
    found = fit_generalized_gaussian(jnp.asarray(x).reshape(3, 100))

    def loss(parameters):
        exponent, unit = parameters
        return -scipy.stats.gennorm.logpdf(x, exponent, scale=unit * scale).mean()

    start = (shape, 1.0)
    best = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-8})
    np.testing.assert_allclose(found.shape, best.x[0], rtol=1e-4)
    np.testing.assert_allclose(found.scale, best.x[1] * scale, rtol=1e-4)
    assert loss((found.shape, found.scale / scale)) <= best.fun + 1e-12


def test_the_shape_of_a_known_likelihood():
    """The fitted shape is near 2 for Gaussian weights, and near 1 for Laplace's distribution."""
    x = jax.random.normal(jax.random.key(0), (50_000,))
    fit = fit_generalized_gaussian(x)
    assert abs(fit.shape - 2) < 4 * (20 / 50_000) ** 0.5
    x = jax.random.laplace(jax.random.key(0), (50_000,))
    fit = fit_generalized_gaussian(x)
    assert abs(fit.shape - 1) < 4 * (3.5 / 50_000) ** 0.5


def test_ends_of_the_fit():
    assert jnp.isnan(jnp.stack(fit_generalized_gaussian(jnp.zeros(5)))).all()
    np.testing.assert_allclose(fit_generalized_gaussian(jnp.ones(5)).shape, 16, rtol=1e-6)
    x = jnp.array([0.0, 0.0, 1.0, -2.0, 0.5])
    assert 0.1 <= fit_generalized_gaussian(x).shape < 1
    with pytest.raises(ValueError, match="at least one element"):
        fit_generalized_gaussian(jnp.zeros(0))


@several_keys
def test_the_fit_has_its_derivatives(key):
    x = jax.random.laplace(key, (30,))
    fit = jax.jit(lambda x: tuple(fit_generalized_gaussian(x)))
    # The tolerance allows for the errors of finite differences.
    check_grads(fit, (x,), order=2, modes=["rev"], rtol=1e-4)


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_the_distance_is_scipys(shape):
    x = np.random.default_rng(0).normal(size=200)
    test = jitted(ks_generalized_gaussian)
    result = test(jax.random.key(0), jnp.asarray(x), shape=jnp.asarray(shape), samples=1)
    scale = (shape * np.mean(abs(x) ** shape)) ** (1 / shape)
    expected = scipy.stats.kstest(x, scipy.stats.gennorm(shape, scale=scale).cdf)
    np.testing.assert_allclose(result.statistic, expected.statistic, rtol=1e-9)


@pytest.mark.slow
def test_unlike_tails_are_told_apart():
    draws = {
        1: jax.random.laplace(jax.random.key(0), (2000,)),
        2: jax.random.normal(jax.random.key(0), (2000,)),
    }

    @partial(jax.jit, static_argnums=1)
    def p_value(x, tested):
        key = jax.random.key(1)
        return ks_generalized_gaussian(key, x, shape=tested, samples=49).p_value

    for shape, x in draws.items():
        p = {tested: p_value(x, tested) for tested in (1, 2, None)}
        assert p[3 - shape] == 0.02
        assert min(p[shape], p[None]) > 0.05


def test_p_values_of_fits_are_a_half_on_average():
    keys = jax.random.split(jax.random.key(0), 2)
    x = 3 * jax.random.laplace(keys[0], (100, 30))
    test = jitted(jax.vmap(lambda key, x: ks_generalized_gaussian(key, x, samples=19)))
    p = test(jax.random.split(keys[1], 100), x).p_value
    assert abs(p.mean() - 0.5) < 4 * (12 * 100) ** -0.5


def fit_by_numpy(x):
    """For each row, the shape and the scale of the largest likelihood, and the KS distance."""
    logs = np.log(np.abs(x))
    low, high = np.full((2, len(x), 1), [[[np.log(0.1)]], [[np.log(16)]]])
    for _ in range(30):
        middle = (low + high) / 2
        shape = np.exp(middle)
        powers = np.exp(shape * logs)
        mean = powers.mean(1, keepdims=True)
        slope = 1 + (scipy.special.psi(1 / shape) + np.log(shape * mean)) / shape
        slope -= (powers * logs).mean(1, keepdims=True) / mean
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    shape = np.exp(low)
    scale = (shape * np.exp(shape * logs).mean(1, keepdims=True)) ** (1 / shape)
    below = scipy.stats.gennorm.cdf(np.sort(x, 1), shape, scale=scale)
    steps = np.arange(x.shape[1] + 1) / x.shape[1]
    distance = np.maximum(below - steps[:-1], steps[1:] - below).max(1)
    return shape, scale, distance


def test_each_drawn_sample_has_a_fit_of_its_own():
    """With the shape of the data for all drawn samples, the p-value would be 0.48."""
    rng, draws = np.random.default_rng(15), 4999
    x = rng.laplace(size=20)
    (shape,), (scale,), (expected,) = fit_by_numpy(x[None])
    drawn = scipy.stats.gennorm.rvs(shape, scale=scale, size=(draws, 20), random_state=rng)
    p_value = (1 + (fit_by_numpy(drawn)[2] >= expected).sum()) / (draws + 1)
    found = jitted(partial(ks_generalized_gaussian, samples=draws))(jax.random.key(1), x)
    assert found.statistic == pytest.approx(expected, rel=1e-5)
    assert p_value == pytest.approx(0.406, abs=0.028)  # four standard errors of one bootstrap
    assert found.p_value == pytest.approx(p_value, abs=0.04)  # four of the difference of two


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("fitted", [False, True])
def test_false_alarms_are_as_rare_as_stated(shape, fitted):
    draws = 1000

    def p_value(key):
        x = jax.random.generalized_normal(key, shape, (200,), "float32")
        tested = None if fitted else jnp.float32(shape)
        key = jax.random.fold_in(key, 1)
        return ks_generalized_gaussian(key, x, shape=tested, samples=99).p_value

    keys = jax.random.split(jax.random.key(0), draws)
    p = jax.jit(lambda keys: jax.lax.map(p_value, keys))(keys)
    for nominal in (0.1, 0.05):
        # Exact p-values are uniform on the multiples of 1/100, so P(p ≤ nominal) is nominal.
        found, stderr = float(jnp.mean(p <= nominal)), (nominal / draws) ** 0.5
        print(shape, fitted, nominal, found)
        assert abs(found - nominal) < 4 * stderr
