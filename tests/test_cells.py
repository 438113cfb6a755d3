import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import geometry

cell_volumes_2d, gamma_2d = map(jax.jit, (geometry.cell_volumes_2d, geometry.gamma_2d))


def circle(n, dtype=None):
    turn = 2 * np.pi * np.arange(n) / n + 0.1
    return jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1), dtype)


@pytest.mark.parametrize("n", [3, 5, 7, 9])
def test_equally_spaced_points_have_2n_cells_of_volume_1_over_2n(n):
    volumes = cell_volumes_2d(circle(n))
    np.testing.assert_allclose(volumes, np.full(2 * n, 1 / (2 * n)), rtol=1e-13)
    assert abs(gamma_2d(circle(n)) - 1 / n) > 0.4 / n  # what the paper prints


@pytest.mark.parametrize("seed", range(3))
def test_volumes_are_the_frequencies_of_sign_patterns(seed):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(5, 2)), rng.normal(size=(2, 200_000))
    _, counts = np.unique((x @ w > 0), axis=1, return_counts=True)
    volumes = np.asarray(cell_volumes_2d(jnp.asarray(x)))
    assert len(counts) == np.sum(volumes > 0) == 10
    np.testing.assert_allclose(np.sort(counts) / 200_000, np.sort(volumes), atol=0.005)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_cells_come_in_opposite_pairs_and_fill_the_plane(n, seed):
    x = jnp.asarray(np.random.default_rng(seed).normal(size=(n, 2)))
    volumes = cell_volumes_2d(x)
    assert abs(volumes.sum() - 1) < 1e-14
    assert (volumes[:n] == volumes[n:]).all()
    assert gamma_2d(x) < 1 / (2 * n) + 1e-15


def test_fewer_points_have_no_smaller_gamma(key):
    x = jax.random.normal(key, (8, 2))
    gammas = [float(gamma_2d(x[:n])) for n in range(1, 9)]
    assert gammas[0] == 0.5
    assert gammas == sorted(gammas, reverse=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_lengths_signs_and_repetitions_of_points_do_not_matter(dtype):
    x = circle(5, dtype)
    lengths = jnp.array([1e-3, -1.0, 3.0, -7.0, 0.3], dtype)[:, None]
    repeated = jnp.concatenate([x, lengths * x, jnp.zeros((2, 2), dtype)])
    assert gamma_2d(repeated).dtype == dtype
    np.testing.assert_allclose(gamma_2d(repeated), 0.1, rtol=1e-5)
    assert (cell_volumes_2d(repeated) > 0).sum() == 10


def test_points_on_the_axes():
    x = jnp.array([[1.0, 0.0], [-1.0, -0.0], [-1.0, 0.0], [0.0, 1.0], [-0.0, -1.0]])
    np.testing.assert_allclose(np.sort(cell_volumes_2d(x))[-4:], 0.25, rtol=1e-15)
    assert gamma_2d(x) == 0.25


def test_zero_vectors_leave_one_cell():
    assert cell_volumes_2d(jnp.zeros((2, 2))).tolist() == [1, 0, 0, 0]
    assert gamma_2d(jnp.zeros((2, 2))) == 1


def test_jit_vmap_and_gradients(key):
    x = jax.random.normal(key, (2, 5, 2))
    expected = jnp.stack([geometry.cell_volumes_2d(x[0]), geometry.cell_volumes_2d(x[1])])
    np.testing.assert_allclose(jax.jit(jax.vmap(cell_volumes_2d))(x), expected, atol=1e-15)
    check_grads(jax.jit(cell_volumes_2d), (x[0],), order=2, modes=["rev"])
