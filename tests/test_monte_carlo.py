import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geometry import Estimate, monte_carlo


def uniform_pair(key):
    return jax.random.uniform(key, (2, 3))


def test_mean_and_standard_error_are_those_of_the_draws(key):
    draws = np.stack([jax.random.uniform(jax.random.fold_in(key, i)) for i in range(20)])
    mean, stderr, samples = monte_carlo(jax.random.uniform, key, 20)
    np.testing.assert_allclose(mean, draws.mean(), rtol=1e-14)
    np.testing.assert_allclose(stderr, draws.std(ddof=1) / 20**0.5, rtol=1e-13)
    assert samples == 20


@pytest.mark.parametrize("batch_size", [1, 7, 99, 100, 1000])
def test_batches_change_nothing_but_rounding(batch_size, key):
    whole = monte_carlo(uniform_pair, key, 100)
    parts = monte_carlo(uniform_pair, key, 100, batch_size=batch_size)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(parts.stderr, whole.stderr, rtol=1e-13)
    assert whole.mean.shape == whole.stderr.shape == (2, 3)


def test_estimates_lie_within_their_standard_errors(key):
    def error(key):
        mean, stderr, _ = monte_carlo(jax.random.normal, key, 50, batch_size=20)
        return mean / stderr

    scores = np.asarray(jax.vmap(error)(jax.random.split(key, 2000)))
    assert abs(scores.mean()) < 0.1
    assert 0.93 < scores.std() < 1.13  # Student's t with 49 degrees of freedom: 1.02


def test_a_large_mean_in_float32_does_not_spoil_the_standard_error(key):
    def draw(key):
        return 1e4 + jax.random.normal(key, dtype=jnp.float32)

    mean, stderr, _ = monte_carlo(draw, key, 10_000, batch_size=300)
    assert mean.dtype == stderr.dtype == jnp.float32
    assert abs(mean - 1e4) < 0.05
    assert abs(stderr - 0.01) < 0.001


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda key: jax.random.bernoulli(key, 0.25), 0.25),
        (lambda key: jax.random.randint(key, (), 0, 10), 4.5),
        (lambda key: jax.random.uniform(key, dtype=jnp.bfloat16), 0.5),
    ],
)
def test_events_counts_and_short_numbers_can_be_drawn(draw, expected, key):
    mean, stderr, _ = monte_carlo(draw, key, 5000, batch_size=1000)
    assert mean.dtype in (jnp.float32, jnp.float64)
    assert abs(mean - expected) < 5 * stderr


def test_a_constant_has_no_error(key):
    mean, stderr, _ = monte_carlo(lambda key: jnp.float32(1e25), key, 10, batch_size=4)
    np.testing.assert_allclose(mean, 1e25, rtol=1e-6)
    assert stderr < 1e19


def test_jit_and_vmap_of_an_estimate(key):
    keys = jax.random.split(key, 3)

    def estimate(key):
        return monte_carlo(uniform_pair, key, 10, batch_size=4)

    one = estimate(keys[0])
    many = jax.jit(jax.vmap(estimate))(keys)
    assert isinstance(many, Estimate)
    np.testing.assert_allclose(many.mean[0], one.mean, rtol=1e-14)


def test_impossible_sizes(key):
    with pytest.raises(ValueError, match="at least 2 samples; got 1"):
        monte_carlo(jax.random.uniform, key, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        monte_carlo(jax.random.uniform, key, 10, batch_size=0)
