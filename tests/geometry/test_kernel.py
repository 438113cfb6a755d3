import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.test_util import check_grads

from geometry import (
    arccosine_kernel,
    gram,
    invariant_representation,
    mean_field_step,
    monte_carlo,
    odd_point,
    odd_points,
)
from geometry.mean_field import cosine_step, expected_norm_factor, kernel_map, rms_cosine_step
from tests.support.gradients import several_keys
from tests.support.numpy_programs import evaluated

kernel, step, odd = jax.jit(arccosine_kernel), jax.jit(mean_field_step), jax.jit(odd_point)


def iterate(start, layers):
    def rescaled(_, g):
        g = mean_field_step(g)
        return g / jnp.trace(g)

    return jax.jit(lambda g: jax.lax.fori_loop(0, layers, rescaled, g))(start)


def relu_product(key, cos):
    u, z = jax.random.normal(key, (2,))
    return 2 * jax.nn.relu(u) * jax.nn.relu(cos * u + (1 - cos**2) ** 0.5 * z)


@pytest.mark.parametrize("cos", [-0.9, 0.0, 0.5])
def test_relu_covariance_is_the_arccosine_kernel(cos, key):
    mean, stderr, _ = monte_carlo(relu_product, key, 100_000, parameters=(jnp.asarray(cos),))
    assert stderr < 0.01  # a larger error could hide a wrong kernel
    expected = kernel(jnp.array([[1.0, cos], [cos, 1.0]]))[0, 1]
    assert abs(mean - expected) < 5 * stderr


def test_a_layer_of_he_weights_has_the_kernel_as_its_mean_gram_matrix(key):
    x = jax.random.normal(key, (4, 3)) * jnp.array([0.1, 1.0, 2.0, 5.0])[:, None]

    def draw(key):
        w = jax.random.normal(key, (3, 8)) * (2 / 8) ** 0.5
        return gram(jax.nn.relu(x @ w))

    mean, stderr, _ = monte_carlo(draw, jax.random.key(1), 20_000)
    assert (abs(mean - kernel(gram(x))) < 5 * stderr).all()


def test_kernel_exceeds_the_inner_product_but_for_parallel_vectors(key):
    x = jax.random.normal(key, (6, 3))
    g = gram(jnp.concatenate([x, 3 * x[:1], -x[:1]]))
    k = kernel(g)
    generic = (k - g)[:6, :6][np.triu_indices(6, 1)]
    assert (generic > 0).all()
    np.testing.assert_allclose(k[0, 6], g[0, 6], rtol=1e-14)  # samples 0 and 6 are parallel
    np.testing.assert_allclose(k[0, 7], 0, atol=1e-14)
    assert (jnp.diagonal(k) == jnp.diagonal(g)).all()


@pytest.mark.parametrize("zero", [0.0, -1e-18])
def test_a_zero_vector_gives_zeros_also_where_rounding_makes_it_negative(zero):
    k = kernel(jnp.array([[zero, 0.0], [0.0, 2.0]]))
    assert (k == jnp.array([[0.0, 0.0], [0.0, 2.0]])).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("f", [arccosine_kernel, mean_field_step])
def test_gradients_are_finite_at_parallel_opposite_and_zero_vectors(f, dtype):
    x = jnp.array([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]], dtype)
    gradient = jax.jit(jax.jacobian(lambda x: f(gram(x))))(x)
    assert gradient.dtype == dtype
    assert jnp.isfinite(gradient).all()


def test_slopes_at_the_ends_are_one_and_zero():
    @jax.jit
    def entry(cos):
        return arccosine_kernel(jnp.eye(2) + cos * (1 - jnp.eye(2)))[0, 1]

    assert jax.grad(entry)(1.0) == 1
    assert jax.grad(entry)(-1.0) == 0


@pytest.mark.parametrize("f", [arccosine_kernel, mean_field_step])
@several_keys
def test_gradients(f, key):
    check_grads(jax.jit(f), (gram(jax.random.normal(key, (4, 5))),), order=2, modes=["rev"])


@pytest.mark.parametrize("f", [arccosine_kernel, mean_field_step])
def test_jit_and_vmap_change_nothing(f, key):
    g = jax.vmap(gram)(jax.random.normal(key, (2, 4, 5)))
    one_by_one = [evaluated(f, part) for part in np.asarray(g)]
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(g), one_by_one, atol=1e-14)


def test_mean_field_step_recentres_the_batch(key):
    x = jax.random.normal(key, (5, 3))
    centred = np.asarray(x) - np.asarray(x).mean(0)
    expected = kernel(jnp.asarray(centred @ centred.T))
    np.testing.assert_allclose(step(gram(x + 7.0)), expected, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_theorem_13_the_invariant_representation_stays_in_expectation(n):
    g = gram(invariant_representation(n, 2))
    alpha = n**2 / (n**2 - 2 * n + 2)
    np.testing.assert_allclose(alpha * step(g), g, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "ratio", "spread", "angle"),
    [
        (7, 3.85, 61.37, 86.24),
        (10, 7.41, 45.20, 88.71),
        (30, 28.35, 16.87, 89.94),
        (100, 98.79, 5.29, 90.00),
    ],
)
def test_infinite_width_has_an_odd_state_with_a_finite_spread(n, ratio, spread, angle):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(n, 50))).at[2].mul(4)
    found = odd(iterate(gram(x), 4000))
    assert found.index == 2
    assert abs(found.norm_ratio - ratio) < 0.01
    assert abs(np.degrees(found.spread) - spread) < 0.01
    assert abs(np.degrees(found.angle) - angle) < 0.01
    assert abs(found.spread * n / (3 * np.pi) - 1) < 2.1 / n  # the spread is 3π/n, up to order 1/n²


@pytest.mark.parametrize("n", [10**3, 10**5, 10**9])
def test_the_odd_state_of_a_large_batch_has_the_limits_of_its_docstring(n):
    """The odd state differs from its limits by order 1/n, but by more if digits cancel."""
    ratio, angle, spread = odd_points.odd_state(n)
    np.testing.assert_allclose([ratio / (n - 1), angle], [1, np.pi / 2], atol=1 / n)
    np.testing.assert_allclose(n * spread / (3 * np.pi), 1, rtol=2.5 / n)


@pytest.mark.parametrize("n", [3, 5, 6])
def test_small_batches_have_no_odd_state(n):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(n, 50))).at[2].mul(4)
    found = odd(iterate(gram(x), 4000))
    kappa = kernel(jnp.array([[1.0, -1 / (n - 1)], [-1 / (n - 1), 1.0]]))[0, 1]
    np.testing.assert_allclose(found.norm_ratio, 1, atol=1e-6)
    np.testing.assert_allclose(found.spread, np.arccos(kappa), atol=1e-6)


def test_large_symmetric_batches_stand_at_the_arccosine_of_one_over_pi():
    g = step(jnp.eye(500))
    assert abs(np.degrees(np.arccos(g[0, 1] / g[0, 0])) - 71.44) < 0.08
    assert abs(np.cos(np.radians(71.44)) - 1 / np.pi) < 1e-4


@pytest.mark.parametrize("n", [10, 30])
def test_the_collapsed_cluster_is_unstable(n):
    x = invariant_representation(n, n + 1)
    noise = np.random.default_rng(0).normal(size=(n, n - 1)) * (np.arange(n) > 0)[:, None]
    g = gram(x.at[:, 2:].add(1e-4 / n * jnp.asarray(noise)))

    def relative_spread(g):
        cluster = jnp.trace(g[1:, 1:]) - g[1:, 1:].sum() / (n - 1)
        return cluster / (g[0, 0] - 2 * g[0, 1:].mean() + g[1:, 1:].mean())

    growth = relative_spread(step(g)) / relative_spread(g)
    np.testing.assert_allclose(growth, n**2 / (n**2 - 2 * n + 2), rtol=1e-3)


@pytest.mark.parametrize(("width", "factor"), [(1, np.pi**-0.5), (2, 0.7123), (10, 0.9356)])
def test_expected_norm_factor_has_the_reference_values(width, factor):
    assert abs(expected_norm_factor(width) - factor) < 5e-5


def test_expected_norm_factor_for_wide_layers():
    assert abs((1 - expected_norm_factor(10_000)) * 10_000 - 5 / 8) < 1e-3


def test_expected_norm_factor_is_what_layers_do(key):
    def draw(key):
        return jnp.linalg.norm(jax.nn.relu(jax.random.normal(key, (5,)) * (2 / 5) ** 0.5))

    mean, stderr, _ = monte_carlo(draw, key, 50_000)
    assert abs(mean - expected_norm_factor(5)) < 5 * stderr
    assert abs(mean - 1) > 50 * stderr  # so the value 1 that Theorem 14 prints is wrong


def test_a_layer_needs_a_neuron():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        expected_norm_factor(0)


@pytest.mark.parametrize("width", [1_000, 10_000])
def test_expected_norms_of_wide_layers_are_their_series(width):
    series = 1 - 5 / (8 * width) - 23 / (128 * width**2)
    np.testing.assert_allclose(expected_norm_factor(width), series, rtol=1e-9)
    assert expected_norm_factor(width) < expected_norm_factor(10 * width) < 1


@pytest.mark.parametrize(
    "f", [cosine_step, rms_cosine_step, lambda x: kernel_map(jax.nn.relu, (0.0,))(x)]
)
def test_a_number_that_is_no_cosine_has_no_cosine_after_a_layer(f):
    found = np.asarray(f(jnp.array([-1.02, 1.02, -1.005, 0.995])))
    np.testing.assert_array_equal(np.isnan(found), [True, True, False, False])


def test_nan_is_not_lost_in_compiled_programs():
    g = jnp.eye(3).at[1, 1].set(jnp.nan)
    for f in (kernel, step):
        assert jnp.isnan(f(g)[1]).all()
    cosines = jax.jit(cosine_step)(jnp.array([jnp.nan, 0.5]))
    assert jnp.isnan(cosines[0])
    assert not jnp.isnan(cosines[1])


@pytest.mark.parametrize("width", [1000, 10_000, 10_001, 20_000, 100_000])
def test_the_norm_factor_is_the_mean_of_a_chi_variable_of_binomial_degrees(width):
    """The expected norm factor is a sum over the degrees of freedom of a chi variable."""
    j = np.arange(1, width + 1)
    log_chi = np.log(2) / 2 + scipy.special.gammaln((j + 1) / 2) - scipy.special.gammaln(j / 2)
    mean = np.sum(scipy.stats.binom.pmf(j, width, 0.5) * np.exp(log_chi)) * (2 / width) ** 0.5
    # Above width 10,000, the code sums a series. At width 10,000, the last term of the series is
    # 2·10⁻⁹. The tolerance is smaller, so the test fails if the last term is wrong.
    np.testing.assert_allclose(expected_norm_factor(width), mean, rtol=0, atol=4e-11)
