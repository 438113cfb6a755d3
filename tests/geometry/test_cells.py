import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

import geometry
from tests.support.gradients import several_keys
from tests.support.numpy_programs import evaluated

cell_volumes_2d, gamma_2d = map(jax.jit, (geometry.cell_volumes_2d, geometry.gamma_2d))


def circle(n, dtype=None):
    turn = 2 * np.pi * np.arange(n) / n + 0.1
    return jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1), dtype)


@pytest.mark.parametrize("n", [3, 5, 7, 9])
def test_equally_spaced_points_have_2n_cells_of_volume_1_over_2n(n):
    volumes = cell_volumes_2d(circle(n))
    np.testing.assert_allclose(volumes, np.full(2 * n, 1 / (2 * n)), rtol=1e-13)
    # The paper prints the value 1/n, which is wrong.
    assert abs(gamma_2d(circle(n)) - 1 / n) > 0.4 / n


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


@pytest.mark.parametrize("n", [10_000, 100_000])
def test_volumes_of_many_samples_fill_the_plane(n, key):
    # In float32, about every tenth angle of 100,000 samples is so small that it counts as 0.
    x = jax.random.normal(key, (n, 2), "float32")
    assert abs(np.sum(cell_volumes_2d(x), dtype=float) - 1) < 1e-5


def test_an_angle_that_counts_as_zero_is_not_lost():
    # Lines at 0, ε, 2 ε and, on both sides of the start of the half turn, at −ε
    turn = jnp.array([0, 1e-7, 2e-7, -1e-7, 1.0], "float32")
    volumes = cell_volumes_2d(jnp.stack([jnp.cos(turn), jnp.sin(turn)], 1))
    assert np.sum(volumes > 0) == 4
    expected = np.array([1 / np.pi, 1 - 1 / np.pi]) / 2
    np.testing.assert_allclose(np.unique(volumes[volumes > 0]), expected, rtol=1e-6)


def test_zero_vectors_leave_one_cell():
    assert cell_volumes_2d(jnp.zeros((2, 2))).tolist() == [1, 0, 0, 0]
    assert gamma_2d(jnp.zeros((2, 2))) == 1


@several_keys
def test_jit_vmap_and_gradients(key):
    x = jax.random.normal(key, (2, 5, 2))
    expected = [evaluated(geometry.cell_volumes_2d, part) for part in np.asarray(x)]
    np.testing.assert_allclose(jax.jit(jax.vmap(cell_volumes_2d))(x), expected, atol=1e-15)
    check_grads(jax.jit(cell_volumes_2d), (x[0],), order=2, modes=["rev"])


def in_space(n, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, 3)))


volumes_3d, gamma_3d = map(jax.jit, (geometry.cells.cell_volumes_3d, geometry.cells.gamma_3d))
sampled_cells = jax.jit(geometry.cells.sampled_cells, static_argnames="samples")


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_cells_in_space_fill_it_in_opposite_pairs(n):
    volumes = np.asarray(volumes_3d(in_space(n)))
    assert len(volumes) == geometry.cells.number_of_cells(n, 3) == n * n - n + 2
    np.testing.assert_allclose(volumes.sum(), 1, rtol=1e-13)
    # The two cells of an opposite pair have equal volumes, and mirrored positions in the array.
    np.testing.assert_allclose(volumes, volumes[::-1], atol=1e-14)
    assert (volumes > 0).all()


def test_volumes_in_space_are_the_frequencies_of_sign_patterns():
    x, w = in_space(6), np.random.default_rng(1).normal(size=(3, 200_000))
    _, counts = np.unique((np.asarray(x) @ w > 0).T, axis=0, return_counts=True)
    volumes = np.asarray(volumes_3d(x))
    assert len(counts) == 32
    np.testing.assert_allclose(counts / 200_000, volumes, atol=0.005)
    assert gamma_3d(x) == volumes.min()


def test_two_samples_in_space_bound_lunes():
    x = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    np.testing.assert_allclose(np.sort(volumes_3d(x)), [0.125, 0.125, 0.375, 0.375], rtol=1e-13)


def test_a_plane_in_space_has_the_cells_of_the_plane():
    flat = in_space(5).at[:, 2].mul(1e-9)
    volumes = np.sort(volumes_3d(flat))[-10:]
    np.testing.assert_allclose(volumes, np.sort(cell_volumes_2d(flat[:, :2])), atol=1e-7)


def test_samples_in_special_position_have_no_volumes_in_space():
    coplanar = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    collinear = jnp.array([[1.0, 2.0, 3.0], [-2.0, -4.0, -6.0]])
    for x in (coplanar, collinear, jnp.zeros((1, 3)), jnp.eye(3).at[0].set(0)):
        assert np.isnan(volumes_3d(x)).all()


def test_small_cells_are_not_rounding():
    """Two lines meet at an angle of 1e-12, or three planes almost meet in one line."""
    narrow = jnp.array([[2.0, 0.0], [3.0, 3e-12], [0.0, 1.0]])
    np.testing.assert_allclose(gamma_2d(narrow), 1e-12 / (2 * np.pi), rtol=1e-3)
    np.testing.assert_allclose(gamma_2d(narrow.at[1, 1].set(6e-16)), 0.25, rtol=1e-12)
    flat = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1e-12]])
    assert jnp.isfinite(volumes_3d(flat)).all()
    assert jnp.isnan(volumes_3d(flat.at[2, 2].set(2e-16))).all()


def test_sampled_volumes_are_as_many_as_pairs_of_cells_or_samples(key):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    for samples, pairs in ((3, 3), (60, 7)):
        found = sampled_cells(key, x, samples=samples)
        assert found.volumes.shape == (pairs,)
        assert found.volumes.dtype == found.gamma.dtype == jnp.float32
        np.testing.assert_allclose(2 * found.volumes.sum(), 1, rtol=1e-6)
        assert found.seen == np.count_nonzero(found.volumes) < pairs
        assert found.gamma == np.unique(found.volumes)[1]


@pytest.mark.parametrize("position", [0, 2])
def test_zero_vectors_bound_no_sampled_cell(position, key):
    x = in_space(2)
    found = sampled_cells(key, jnp.insert(x, position, 0, axis=0), samples=50)
    expected = sampled_cells(key, x, samples=50)
    assert (found.seen, found.gamma) == (expected.seen, expected.gamma) == (2, found.gamma)
    np.testing.assert_array_equal(found.volumes[:2], expected.volumes)
    none = sampled_cells(key, jnp.zeros((3, 3)), samples=50)
    assert (none.seen, none.gamma, none.volumes[0]) == (1, 1, 1)


def test_orthogonal_samples_have_volume_2_to_the_minus_n(key):
    for n in (1, 4):
        found = sampled_cells(key, jnp.eye(n), samples=40_000)
        assert found.seen * 2 == geometry.cells.number_of_cells(n, n) == 2**n
        np.testing.assert_allclose(found.volumes, 2.0**-n, atol=0.01)
    np.testing.assert_allclose(volumes_3d(jnp.eye(3)), 0.125, rtol=1e-13)


def test_sampled_volumes_are_right_and_a_missed_cell_spoils_gamma(key):
    x = in_space(5)
    exact = np.sort(volumes_3d(x))
    many, few = (sampled_cells(key, x, samples=samples) for samples in (200_000, 60))
    np.testing.assert_allclose(np.sort(many.volumes), exact[::2], atol=0.003)
    assert many.seen == 11
    assert few.seen < 11
    assert few.gamma >= 1 / 120 > gamma_3d(x)
    one = sampled_cells(key, x, samples=1)
    assert (one.seen, one.gamma) == (1, 0.5)


@pytest.mark.parametrize(("n", "dims", "cells"), [(6, 3, 32), (9, 2, 18), (3, 8, 8), (1, 1, 2)])
def test_numbers_of_cells(n, dims, cells):
    assert geometry.cells.number_of_cells(n, dims) == cells


def test_vmap_in_space():
    x = jnp.stack([in_space(4), in_space(4, 1)])
    many = jax.jit(jax.vmap(volumes_3d))(x)
    np.testing.assert_allclose(many[1], volumes_3d(x[1]), atol=1e-14)


@several_keys
def test_gradients_in_space(key):
    check_grads(volumes_3d, (jax.random.normal(key, (4, 3)),), order=1, modes=["rev"])


def test_impossible_arguments(key):
    with pytest.raises(ValueError, match="at least 1; got n 0 and dims 2"):
        geometry.cells.number_of_cells(0, 2)
    with pytest.raises(ValueError, match="at least 1; got n 4 and dims 0"):
        geometry.cells.number_of_cells(4, 0)
    with pytest.raises(ValueError, match="samples must be at least 1; got 0"):
        geometry.cells.sampled_cells(key, jnp.eye(2), samples=0)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_batch_of_the_plane_or_of_space_is_refused():
    with pytest.raises(ValueError, match=r"\(samples, 2\); got \(2, 3\)"):
        geometry.cell_volumes_2d(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"\(samples, 3\); got \(2,\)"):
        geometry.cells.cell_volumes_3d(jnp.ones(2))
    with pytest.raises(ValueError, match="must be finite; 2 of 4 elements are not"):
        geometry.gamma_2d(jnp.full((2, 2), jnp.nan).at[0].set(1))


@pytest.mark.parametrize("x", [np.zeros((3, 2)), [[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]]])
def test_gradients_are_finite_for_zero_vectors(x):
    volumes = jax.jit(jax.jacobian(geometry.cell_volumes_2d))(jnp.asarray(x))
    assert jnp.isfinite(volumes).all()


def test_nan_is_not_lost_in_compiled_programs():
    x = jnp.array([[1.0, 0.0], [jnp.nan, 1.0], [0.0, 1.0]])
    assert jnp.isnan(cell_volumes_2d(x)).any()
    assert jnp.isnan(gamma_2d(x))


def test_few_samples_have_as_many_cells_in_any_number_of_dimensions():
    assert geometry.cells.number_of_cells(4, 10**15) == 2**4
