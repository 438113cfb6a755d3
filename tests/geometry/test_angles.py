import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

import geometry
from geometry import _angles
from tests.support.gradients import several_keys
from tests.support.numpy_programs import evaluated

gram, angles, distances = map(jax.jit, (geometry.gram, geometry.angles, geometry.distances))


def test_gram_equals_numpy(key):
    x = jax.random.normal(key, (7, 3))
    np.testing.assert_allclose(gram(x), np.asarray(x) @ np.asarray(x).T, atol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("f", [gram, angles, distances])
def test_dtype_is_kept(f, dtype):
    assert f(jnp.eye(3, dtype=dtype)).dtype == dtype


@settings(max_examples=10, deadline=None)
@given(st.floats(-15, 0), st.floats(0, 6.28))
def test_an_angle_of_any_size_is_measured(exponent, turn):
    theta = 3 * 10.0**exponent
    # The rows of `x` are unit vectors at the angle theta. The second row is a multiple of the base
    # vector plus a small step, because such a sum represents a small theta precisely.
    base, across = np.array([np.cos(turn), np.sin(turn)]), np.array([-np.sin(turn), np.cos(turn)])
    x = np.stack([base, np.cos(theta) * base + np.sin(theta) * across])
    assert abs(angles(jnp.asarray(x))[0, 1] - theta) < 1e-15 + 1e-14 * theta


@pytest.mark.parametrize(("dtype", "theta"), [(jnp.float32, 3e-7), (jnp.float64, 3e-14)])
def test_tiny_angles_are_resolved_where_an_arccosine_gives_zero(dtype, theta):
    x = jnp.array([[1.0, 0.0], [1.0, theta], [2.0, 0.0], [-5.0, 0.0]], dtype)
    found = angles(x)[0]
    np.testing.assert_allclose(found[1], theta, rtol=1e-6)
    assert found[2] == 0
    np.testing.assert_allclose(found[3], np.pi, rtol=1e-7)


# `angles` splits the second array into blocks.
@pytest.mark.parametrize("shape", [(20, 5), (9, 20_000)])
def test_angles_agree_with_arccosines_where_these_are_good(shape, key):
    x = np.asarray(jax.random.normal(key, shape))
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = np.arccos(np.clip(u @ u.T, -1, 1))
    np.testing.assert_allclose(angles(jnp.asarray(x)), expected, atol=1e-7)


def test_angles_ignore_positive_scales_and_rotations(key):
    x = jax.random.normal(key, (6, 4))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    scaled = x * jnp.array([1e-300, 1e-9, 1.0, 3.0, 1e9, 1e300])[:, None]
    np.testing.assert_allclose(angles(scaled), angles(x), atol=1e-14)
    np.testing.assert_allclose(angles(x @ rotation), angles(x), atol=1e-14)


def test_a_zero_vector_has_no_angle_but_a_distance():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    assert np.isnan(angles(x)).tolist() == [[True, True], [True, False]]
    assert distances(x)[0, 1] == 5


def test_distances_survive_a_large_offset(key):
    x = np.asarray(jax.random.normal(key, (40, 3), jnp.float32)) + np.float32(1e4)
    wide = x.astype(np.float64)
    expected = np.linalg.norm(wide[:, None] - wide[None], axis=-1)
    np.testing.assert_allclose(distances(jnp.asarray(x)), expected, rtol=1e-6)


def test_distances_neither_overflow_nor_underflow():
    x = jnp.array([[3e30, 4e30], [0.0, 0.0], [3e-30, 4e-30]], jnp.float32)
    np.testing.assert_allclose(distances(x)[1], [5e30, 0, 5e-30], rtol=1e-6)


@pytest.mark.parametrize("f", [geometry.gram, geometry.angles, geometry.distances])
def test_jit_and_vmap_change_nothing(f, key):
    x = jax.random.normal(key, (2, 19, 3))
    expected = [evaluated(f, part) for part in np.asarray(x)]
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(x), expected, atol=1e-14)


@pytest.mark.parametrize("f", [gram, angles, distances])
@several_keys
def test_gradients(f, key):
    x = jax.random.normal(key, (4, 3))
    off_diagonal = jax.jit(lambda x: f(x)[jnp.triu_indices(4, 1)])
    check_grads(off_diagonal, (x,), order=2, modes=["rev"])


@pytest.mark.parametrize("f", [gram, angles, distances])
def test_gradients_are_finite_at_equal_opposite_and_zero_vectors(f):
    x = jnp.array([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]])
    assert jnp.isfinite(jax.jit(jax.jacobian(lambda x: jnp.nan_to_num(f(x))))(x)).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "f", [geometry.angles, geometry.distances, geometry.gram, geometry.numerical_rank]
)
def test_what_is_no_batch_is_refused(f):
    with pytest.raises(ValueError, match=r"\(samples, features\); got \(3,\)"):
        f(jnp.ones(3))
    with pytest.raises(ValueError, match="x must be finite; 2 of 4 elements are not"):
        f(jnp.array([[jnp.nan, 1.0], [jnp.inf, 1.0]]))


@pytest.mark.parametrize("f", [geometry.angles, geometry.distances])
def test_gradients_hold_no_differences_of_all_pairs(f):
    x = jax.ShapeDtypeStruct((128, 1024), jnp.float64)
    gradient = jax.jit(jax.grad(lambda x: f(x).sum())).lower(x).compile()
    memory = gradient.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.2 * 128**2 * 1024 * 8


@pytest.mark.parametrize("f", [angles, distances])
def test_half_precision_is_computed_in_single(f, key):
    x = jax.random.normal(key, (6, 40), jnp.bfloat16)
    single = f(x.astype(jnp.float32))
    np.testing.assert_array_equal(f(x), single.astype(jnp.bfloat16))


def test_a_sample_larger_than_a_block_is_a_block_of_its_own(monkeypatch):
    monkeypatch.setattr(_angles, "_CPU_BLOCK", 8)
    x = np.arange(12.0).reshape(3, 4) ** 2
    expected = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.testing.assert_allclose(_angles.distances(jnp.asarray(x)), expected, rtol=1e-14)
