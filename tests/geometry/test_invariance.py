from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import geometry
from geometry import invariant_representation, mean_field_step, monte_carlo
from geometry.mean_field import expected_norm_factor
from geometry.odd_points import cluster_growth, next_layer
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

gram, is_invariant, expected_entries = map(
    jitted, (geometry.gram, geometry.is_invariant, geometry.odd_points.expected_entries)
)
expected = jax.jit(next_layer)


def square_distances(g):
    norms = np.diagonal(g)
    return norms[:, None] + norms[None] - 2 * np.asarray(g)


@pytest.mark.parametrize("unit", [1e30, 1e-30])
def test_the_next_layer_has_the_unit_of_its_batch_in_float32_too(unit):
    """The radius scales with the batch, whose squares would overflow or underflow float32."""
    x = np.array([[4.0], [1.0], [1.0]], np.float32)
    found = expected(jnp.asarray(x * np.float32(unit)))
    np.testing.assert_allclose(found.radius, 3 * unit, rtol=1e-5)
    by_hand = np.full((4, 4), 0.25) - 0.25 * (np.eye(4)[:1] + np.eye(4)[:, :1])
    by_hand[0, 0] = 1
    np.testing.assert_allclose(found.gram, by_hand, atol=1e-6)


@pytest.mark.parametrize("function", [expected, partial(expected_entries, width=3)])
def test_a_large_mean_in_float32_costs_no_digits(function):
    x = np.float32(1e4 + np.random.default_rng(0).normal(size=(9, 6)))
    for found, double in zip(
        *map(jax.tree.leaves, (function(x), function(x.astype(float)))), strict=True
    ):
        np.testing.assert_allclose(found, double, rtol=1e-5, atol=1e-6)


def batch(n, radius, seed: Any = 0):
    """A batch whose first sample has the distance `radius` from the mean of the other samples."""
    x = np.random.default_rng(seed).normal(size=(n, 7))
    x[1:] = 0.03 * (x[1:] - x[1:].mean(0)) + 0.4
    away = x[0] - x[1:].mean(0)
    x[0] = x[1:].mean(0) + radius * away / np.linalg.norm(away)
    return jnp.asarray(x)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_theorem_13_the_expected_gram_matrix_is_invariant(n):
    x = invariant_representation(n, 4)
    g = np.asarray(x @ x.T)
    grown = cluster_growth(n) * np.asarray(jitted(mean_field_step)(g))
    np.testing.assert_allclose(grown, g, atol=1e-12)
    assert is_invariant(grown, tolerance=1e-12)
    np.testing.assert_allclose(expected(x).gain, cluster_growth(n), rtol=1e-12)


def test_theorem_13_the_expected_entries_are_not():
    n, width = 6, 50
    x = invariant_representation(n, 4)
    column = expected_entries(x, width=width, gain=cluster_growth(n))
    mean = jnp.tile(column[:, None], (1, width))
    assert not is_invariant(gram(mean), tolerance=0.1)
    norms = np.linalg.norm(mean, axis=1)
    np.testing.assert_allclose(norms**2 * [1, *(n - 1,) * (n - 1)] ** np.array(2), 1 / np.pi)


def test_expected_entries_are_the_means_of_random_layers(key):
    x = jax.random.normal(key, (4, 3))

    def draw(key):
        z = x @ jax.random.normal(key, (3, 5)) * (2 * 1.3 / 5) ** 0.5
        return jax.nn.relu(z - z.mean(0)[None])

    mean, stderr, _ = monte_carlo(draw, key, 20_000)
    found = expected_entries(x, width=5, gain=1.3)
    assert (abs(mean - found[:, None]) < 5 * stderr).all()


@pytest.mark.parametrize("n", [4, 9, 25])
@pytest.mark.parametrize("factor", [1.001, 1.5])
def test_theorem_14_squared_norms_orthogonality_and_contraction(n, factor):
    radius = factor * n / (n - 1)
    x = batch(n, radius)
    found = expected(x)
    g = np.asarray(found.gram)
    np.testing.assert_allclose(found.radius, radius, rtol=1e-10)
    np.testing.assert_allclose(g[0, 0], 1, rtol=1e-10)  # item 1: ‖x₁‖² is 1 on average
    # Item 2: the mean of the other samples has this squared norm on average.
    np.testing.assert_allclose(g[-1, -1], 1 / (n - 1) ** 2, rtol=1e-10)
    assert abs(g[0, -1]) < 1e-10  # item 3: the first sample is orthogonal to this mean
    cluster = np.concatenate([x[1:], x[1:].mean(0, keepdims=True)])
    before = np.square(cluster[:, None] - cluster[None]).sum(-1)
    pairs = np.triu_indices(n, 1)
    assert (square_distances(g)[1:, 1:][pairs] < before[pairs]).all()  # item 4: distances shrink


def test_theorem_14_norms_are_below_their_printed_values():
    # The paper prints E‖x₁‖ = 1, but only E‖x₁‖² is 1.
    assert expected_norm_factor(20) < 0.97


@pytest.mark.parametrize("n", [3, 10, 100])
def test_theorem_14_nothing_satisfies_its_hypotheses(n):
    radius = expected(invariant_representation(n, 3)).radius
    np.testing.assert_allclose(radius, (n**2 - 2 * n + 2) ** 0.5 / (n - 1), rtol=1e-12)
    assert radius < n / (n - 1)


def test_theorem_14_below_its_radius_distances_may_grow():
    n = 20
    x = batch(n, 0.96 * n / (n - 1))
    x = x.at[1:].set(x[1:].mean(0)[None] + 1e-4 * (x[1:] - x[1:].mean(0)[None]))
    ratio = square_distances(expected(x).gram)[1:-1, 1:-1][0, 1] / np.square(x[1] - x[2]).sum()
    assert abs(ratio - 1.076) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("n", "width"), [(10, 200), (30, 300)])
def test_the_spread_of_a_cluster_grows_in_finite_networks(n, width):
    layers, chains = 30, 40

    def growth(key):
        inputs, weights = jax.random.split(key)
        x = invariant_representation(n, n + 1)
        x = x.at[1:].add(1e-7 / n * jax.random.normal(inputs, (n - 1, n + 1)))

        def spread(x):
            centre = x[1:].mean(0)
            away = jnp.square(x[0] - centre).sum()
            return jnp.log(jnp.square(x[1:] - centre[None]).sum() / away)

        def layer(x, key):
            z = x @ jax.random.normal(key, (x.shape[1], width))
            x = jax.nn.relu(z - z.mean(0)[None])
            return x / jnp.linalg.norm(x), None

        keys = jax.random.split(weights, layers + 1)
        x, _ = layer(x, keys[0])
        last, _ = jax.lax.scan(layer, x, keys[1:])
        return (spread(last) - spread(x)) / layers

    mean, stderr, _ = monte_carlo(growth, jax.random.key(0), chains)
    assert mean > 5 * stderr  # distances in the cluster grow, so the batch is unstable
    assert abs(mean - np.log(cluster_growth(n))) < 5 * stderr + 3 / width


def test_recognition():
    g = gram(jnp.roll(3 * invariant_representation(5, 2), 2, axis=0))
    assert is_invariant(g)
    assert not is_invariant(g + 1e-4)
    assert is_invariant(g + 1e-4, tolerance=1e-4)
    for i, j in ((0, 0), (0, 1), (0, 2)):  # row 2 is the longest sample
        for change in (1e-3 * g[2, 2], -1e-3 * g[2, 2]):
            other = g.at[i, j].set(g[i, j] + change).at[j, i].set(g[i, j] + change)
            assert is_invariant(other, tolerance=1.1e-3)
            assert not is_invariant(other, tolerance=0.9e-3)
    assert not is_invariant(jnp.zeros((3, 3)))
    assert not is_invariant(jnp.eye(3))


@several_keys
def test_gradients(key):
    x = batch(4, 1.0, np.asarray(jax.random.key_data(key)))
    check_grads(jax.jit(lambda x: next_layer(x).gram), (x,), order=1, modes=["rev"], eps=1e-5)


def test_impossible_sizes():
    for call in (is_invariant, next_layer):
        with pytest.raises(ValueError, match="at least 2 samples; got 1"):
            call(jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="width must be at least 1; got 0"):
        expected_entries(jnp.eye(2), width=0)
    with pytest.raises(ValueError, match=r"tolerance must lie in \[0, inf\]; got -1"):
        is_invariant(jnp.eye(2), tolerance=-1.0)


def test_a_negative_gain_of_an_array_gives_nan_and_a_zero_gain_zeros():
    x = jnp.array([[3.0, 1.0], [5.0, 0.0]])
    assert np.isnan(expected_entries(x, width=3, gain=jnp.array(-1.0))).all()
    assert (expected_entries(x, width=3, gain=0.0) == 0).all()


def test_gradients_of_expected_entries_are_finite_where_samples_equal_the_mean():
    gradient = jax.grad(lambda x: expected_entries(x, width=3).sum())(jnp.ones((3, 2)))
    assert (gradient == 0).all()
