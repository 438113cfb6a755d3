import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import geometry
from geometry import invariant_representation, odd_points, tree_gram
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

gram, is_odd, odd_point = map(jitted, (geometry.gram, geometry.is_odd, geometry.odd_point))


@pytest.mark.parametrize("n", [2, 3, 17])
def test_definition_12(n):
    x = np.asarray(invariant_representation(n, 4))
    centre = x[1:].mean(0)
    assert np.linalg.norm(x[0]) == 1
    np.testing.assert_allclose(np.linalg.norm(centre), 1 / (n - 1), rtol=1e-15)
    assert x[0] @ centre == 0
    assert (x[1:] == x[1]).all()


def test_recentring_makes_the_odd_point_and_the_cluster_opposite():
    n = 6
    x = np.asarray(invariant_representation(n, 3))
    x = x - x.mean(0)
    np.testing.assert_allclose(x[0], -(n - 1) * x[1], atol=1e-15)
    np.testing.assert_allclose(x[0] @ x[0], (n**2 - 2 * n + 2) / n**2, rtol=1e-14)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_the_odd_point_of_an_invariant_representation(place):
    x = jnp.roll(invariant_representation(7, 2), place, axis=0)
    odd = odd_point(gram(x))
    assert odd.index == place
    np.testing.assert_allclose(odd.norm_ratio, 6, rtol=1e-14)
    np.testing.assert_allclose(odd.second_ratio, 1 / 6, rtol=1e-14)
    np.testing.assert_allclose(odd.angle, np.pi / 2, rtol=1e-14)
    np.testing.assert_allclose(odd.spread, 0, atol=1e-7)


def test_a_batch_by_hand():
    x = jnp.array([[0.0, 4.0], [2.0, 0.0], [1.0, 1.0]])
    odd = odd_point(gram(x))
    assert odd.index == 0
    np.testing.assert_allclose(odd.norm_ratio, 8 / (2 + 2**0.5))
    np.testing.assert_allclose(odd.second_ratio, 0.5)
    np.testing.assert_allclose(np.degrees(odd.angle), (90 + 45) / 2)
    np.testing.assert_allclose(np.degrees(odd.spread), 45)


@pytest.mark.parametrize(("ratio", "expected"), [(2.9, False), (3.1, True)])
def test_an_odd_point_of_seven_is_three_times_as_long_at_least(ratio, expected):
    """The threshold of the norm ratio of n = 7 samples is (n − 1)/2 = 3, not n/2 = 3.5."""
    x = invariant_representation(7, 2)
    x = x.at[0].multiply(ratio / 6)
    np.testing.assert_allclose(odd_point(gram(x)).norm_ratio, ratio)
    assert is_odd(gram(x)) == expected


@pytest.mark.parametrize(
    ("angle", "spread", "expected"),
    [(81, 64, True), (79, 64, False), (81, 66, False), (100, 0, True)],
)
def test_an_odd_point_is_80_degrees_from_samples_within_65_degrees(angle, spread, expected):
    g = np.full((4, 4), np.cos(np.radians(spread)))
    g[0] = g[:, 0] = 2 * np.cos(np.radians(angle))
    np.fill_diagonal(g, [4, 1, 1, 1])
    assert is_odd(jnp.asarray(g)) == expected


def test_an_opposite_sample_has_the_angle_pi_and_a_parallel_one_zero():
    x = np.array([[5.0, 0.0], [-1.0, 0.0], [2.0, 0.0]])
    found = geometry.odd_point(jnp.asarray(x @ x.T))
    # The mean of the angles π and 0 is π/2.
    np.testing.assert_allclose(found.angle, np.pi / 2, rtol=1e-12)
    np.testing.assert_allclose(found.spread, np.pi, rtol=1e-12)


def test_scale_does_not_matter_and_order_only_moves_the_index(key):
    g = gram(jax.random.normal(key, (9, 4)))
    order = np.random.default_rng(0).permutation(9)
    odd, moved = odd_point(g), odd_point(1e6 * g[order][:, order])
    assert order[moved.index] == odd.index
    np.testing.assert_allclose(np.array(moved[1:]), np.array(odd[1:]), rtol=1e-12)


def test_one_odd_point_is_told_from_two_and_from_none(key):
    assert is_odd(gram(jnp.roll(invariant_representation(7, 2), 3, axis=0)))
    assert not is_odd(gram(jax.random.normal(key, (7, 30))))
    tree = jax.jit(tree_gram, static_argnums=1)(jnp.linspace(-1, 1, 7), 1000)
    assert not is_odd(tree.gram)  # two samples become long, so no single sample is odd


@pytest.mark.parametrize(
    "n", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 9, 11)), 10, 100]
)
def test_the_odd_state_is_odd_and_symmetric_batches_are_not(n):
    state = odd_points.odd_state(n)
    cosines = np.full((n, n), np.cos(state.spread))
    cosines[0], cosines[:, 0] = np.cos(state.angle), np.cos(state.angle)
    np.fill_diagonal(cosines, 1)
    norms = np.array([state.norm_ratio] + [1.0] * (n - 1))
    assert is_odd(jnp.asarray(np.outer(norms, norms) * cosines))
    symmetric = np.full((n, n), np.cos(odd_points.recentred_angle(n)))
    np.fill_diagonal(symmetric, 1)
    assert not is_odd(jnp.asarray(np.outer(norms, norms) * symmetric))


def test_a_zero_vector_has_no_angle():
    odd = odd_point(jnp.diag(jnp.array([0.0, 1.0, 4.0])))
    assert odd.norm_ratio == 4
    assert jnp.isnan(odd.angle)
    assert jnp.isnan(odd.spread)
    for place in range(3):
        alone = odd_point(jnp.diag(4 * jnp.eye(3)[place]))
        assert (alone.index, alone.norm_ratio, alone.second_ratio) == (place, jnp.inf, 0)


def test_dtype_jit_and_vmap(key):
    g = jax.vmap(gram)(jax.random.normal(key, (3, 8, 5), jnp.float32))
    each = [odd_point(one) for one in g]
    for found, *expected in zip(jax.jit(jax.vmap(odd_point))(g), *each, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert {part.dtype for part in each[0][1:]} == {jnp.dtype(jnp.float32)}


@several_keys
def test_gradients(key):
    x = jax.random.normal(key, (5, 4))
    check_grads(jax.jit(lambda x: odd_point(gram(x))[1:3]), (x,), order=2, modes=["rev"])


def test_impossible_sizes():
    with pytest.raises(ValueError, match="at least 3 samples; got 2"):
        odd_point(jnp.eye(2))
    with pytest.raises(ValueError, match="at least 2; got n 1 and dims 2"):
        invariant_representation(1, 2)
    with pytest.raises(ValueError, match="at least 2; got n 2 and dims 1"):
        invariant_representation(2, 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("sizes", "name"), [((2.5, 3), "n"), ((3, 2.5), "dims")])
def test_a_fraction_of_a_sample_or_dimension_is_refused(sizes, name):
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number .*; got 2\.5"):
        invariant_representation(*sizes)
