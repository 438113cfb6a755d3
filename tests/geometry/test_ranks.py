import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

import geometry
from geometry import gram
from tests.support.gradients import several_keys

numerical_rank, effective_rank, stable_rank, isometry_gap, orthogonality_gap = map(
    jax.jit,
    (
        geometry.numerical_rank,
        geometry.effective_rank,
        geometry.stable_rank,
        geometry.isometry_gap,
        geometry.orthogonality_gap,
    ),
)


def matrix(n, d, values, seed=0):
    """A matrix with the given singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(n, len(values))))
    v, _ = np.linalg.qr(rng.normal(size=(d, len(values))))
    return jnp.asarray((u * np.array(values)) @ v.T)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_ranks_of_known_singular_values(shape):
    n, d = shape
    x = matrix(n, d, [3.0, 2.0, 1e-5])
    squares = np.array([9.0, 4.0, 1e-10])
    assert numerical_rank(x) == 3
    np.testing.assert_allclose(stable_rank(x), squares.sum() / 9, rtol=1e-12)
    np.testing.assert_allclose(
        effective_rank(x), squares.sum() ** 2 / (squares**2).sum(), rtol=1e-12
    )


def test_the_rank_is_numpys_in_float32_where_a_gram_matrix_would_miss_it():
    x = matrix(8, 8, [1.0, 1e-3, 1e-5, 1e-9]).astype(jnp.float32)
    assert numerical_rank(x) == np.linalg.matrix_rank(np.asarray(x)) == 3


@pytest.mark.parametrize("shape", [(4, 2000), (2000, 4)])
def test_the_tolerance_of_the_rank_grows_with_the_longer_side(shape):
    # For the machine epsilon ε of float32, 4 ε < 1e-5 < 2,000 ε.
    x = matrix(shape[0], shape[1], [1.0, 0.5, 0.1, 1e-5]).astype(jnp.float32)
    assert numerical_rank(x) == np.linalg.matrix_rank(np.asarray(x)) == 3


def test_the_tolerance_of_the_rank_is_that_of_a_narrow_dtype():
    """For three samples in bfloat16, the threshold is 3/128 times the largest singular value."""
    x = jnp.diag(jnp.array([2.0, 0.05, 0.04], jnp.bfloat16))
    assert numerical_rank(x) == 2
    assert numerical_rank(x.astype(jnp.float32)) == 3


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_one_below_stable_below_effective_below_rank(seed):
    x = jnp.asarray(np.random.default_rng(seed).normal(size=(6, 4)) * np.logspace(1, -2, 4))
    stable, effective, rank = map(float, (stable_rank(x), effective_rank(x), numerical_rank(x)))
    # The singular values σ satisfy Σσ⁴ ≤ σ₁² Σσ².
    assert 1 <= stable <= effective + 1e-12
    assert effective <= rank == 4


@pytest.mark.parametrize("f", [effective_rank, stable_rank])
def test_scales_and_rotations_do_not_matter_and_zeros_have_rank_0(f, key):
    x = jax.random.normal(key, (5, 3))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    np.testing.assert_allclose(f(1e200 * x @ rotation), f(x), rtol=1e-12)
    assert f(jnp.zeros((3, 2))) == 0
    assert numerical_rank(jnp.zeros((3, 2))) == 0
    assert jnp.isfinite(jax.grad(f)(jnp.zeros((3, 2)))).all()


def test_gaps_of_orthogonal_samples_vanish():
    g = gram(matrix(4, 7, [2.0] * 4))
    np.testing.assert_allclose(isometry_gap(g), 0, atol=1e-14)
    np.testing.assert_allclose(orthogonality_gap(g), 0, atol=1e-14)
    assert (jax.grad(orthogonality_gap)(jnp.eye(3)) == 0).all()


def test_gaps_by_hand():
    g = jnp.diag(jnp.array([1.0, 4.0]))
    expected = np.log(2.5) - np.log(4) / 2
    for scale in (1, 1e-20, 1e20):
        np.testing.assert_allclose(isometry_gap(scale * g), expected, rtol=1e-13)
    np.testing.assert_allclose(orthogonality_gap(g), np.hypot(0.3, 0.3), rtol=1e-14)
    assert isometry_gap(jnp.ones((3, 3))) == np.inf
    assert np.isnan(isometry_gap(jnp.zeros((2, 2))))
    assert np.isnan(orthogonality_gap(jnp.zeros((2, 2))))


def test_the_isometry_gap_is_the_log_determinant(key):
    g = gram(jax.random.normal(key, (6, 9)))
    _, log_det = np.linalg.slogdet(np.asarray(g))
    np.testing.assert_allclose(isometry_gap(g), np.log(np.trace(g) / 6) - log_det / 6, rtol=1e-12)


@several_keys
def test_gradients_also_where_singular_values_coincide(key):
    x = jax.random.normal(key, (4, 3))
    for f in (effective_rank, stable_rank):
        check_grads(f, (x,), order=1, modes=["rev"])
        assert jnp.isfinite(jax.grad(f)(jnp.eye(3))).all()
    for f in (isometry_gap, orthogonality_gap):
        check_grads(jax.jit(lambda x, f=f: f(x @ x.T)), (x.T,), order=1, modes=["rev"])


@pytest.mark.parametrize("f", [effective_rank, stable_rank])
def test_gradients_of_small_batches_are_finite_in_float32(f, key):
    x = jax.random.normal(key, (4, 3), jnp.float32)
    gradient = jax.grad(lambda x: f(1e20 * x))(1e-20 * x)
    np.testing.assert_allclose(gradient, 1e20 * jax.grad(f)(x), rtol=1e-2, atol=1e17)
    assert jnp.isfinite(jax.grad(f)(1e-20 * x)).all()


@pytest.mark.parametrize("n", [4, 40, 160])
def test_eigenvalues_below_n_roundings_of_the_largest_count_as_zero(n):
    eps = float(np.finfo(float).eps)
    for share, dependent in ((0.3, True), (3.0, False)):
        g = jnp.diag(jnp.ones(n).at[0].set(share * n * eps))
        assert np.isinf(isometry_gap(g)) == dependent


@pytest.mark.parametrize("scale", [-1.0, -1e30, -3e38])
@pytest.mark.parametrize("rank", [numerical_rank, effective_rank, stable_rank])
def test_ranks_of_negative_samples_are_those_of_positive_samples(rank, scale):
    """All elements of x are negative, so the maximum of x is not that of |x|."""
    x = np.array([[1.0, 0.5, 0.25], [0.25, 0.75, 0.5]])
    found = rank(jnp.asarray(scale * x, "float32"))
    np.testing.assert_allclose(found, rank(jnp.asarray(x, "float32")), rtol=1e-5)
