"""Unitization by Equations 6, 8, 9 and 10: edge cases, and bounds that hold or fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

from jaxnorm import bounded, unit_vector, unitize, unitize_bounded
from tests.support.gradients import several_keys
from tests.support.jitted import jitted


def vectors(key, scale=1.0, shape=(6, 4)):
    return scale * jax.random.normal(key, shape)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_unit_vectors_have_norm_one_at_any_scale_in_float32(key, scale):
    y = unit_vector(vectors(key).astype("float32") * np.float32(scale))
    np.testing.assert_allclose(np.linalg.norm(np.asarray(y, np.float64), axis=1), 1, rtol=1e-6)


def test_unit_vectors_ignore_positive_factors_and_turn_with_the_axis(key):
    x = vectors(key)
    np.testing.assert_allclose(unit_vector(x), unit_vector(7 * x), rtol=1e-12)
    turned = np.asarray(jitted(unit_vector)(x.T, axis=0))
    np.testing.assert_allclose(turned.T, unit_vector(x), rtol=1e-12)


def test_the_zero_vector_points_along_the_first_axis():
    np.testing.assert_array_equal(unit_vector(jnp.zeros((2, 3))), [[1, 0, 0]] * 2)


def test_nan_stays_nan():
    assert jnp.isnan(unit_vector(jnp.array([jnp.nan, 1.0]))).all()
    assert jnp.isnan(unitize_bounded(jnp.array([jnp.nan, 1.0]), 0.5)).all()
    for eps in (0.0, 1e-5):
        assert jnp.isnan(unitize(jnp.array([jnp.nan, 1.0]), 0.5, eps=eps)).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, -0.5, 1.5])
def test_eq_8_against_its_formula(key, alpha):
    x = np.asarray(vectors(key, 3.0))
    r = np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(
        unitize_bounded(jnp.asarray(x), alpha), x / (alpha * r + 1 - alpha), rtol=1e-10
    )


def test_eq_9_with_equal_alphas_is_eq_8(key):
    x = vectors(key)
    np.testing.assert_allclose(
        unitize_bounded(x, jnp.full(4, 0.3)), unitize_bounded(x, 0.3), rtol=1e-12
    )


def test_at_the_zero_vector_eq_8_and_eq_9_differ_only_at_alpha_one():
    zero = jnp.zeros(3)
    np.testing.assert_array_equal(unitize_bounded(zero, 1.0), [1, 0, 0])
    np.testing.assert_array_equal(unitize_bounded(zero, jnp.ones(3)), 0)
    np.testing.assert_array_equal(unitize_bounded(zero[:1], jnp.ones(())), 1)
    np.testing.assert_array_equal(unitize_bounded(zero[:1], jnp.ones(1)), 0)
    np.testing.assert_array_equal(bounded(jnp.array([0.0, 0.5, 1.0]), 0.0), [1, 2, 1])
    np.testing.assert_array_equal(unitize_bounded(zero, 0.5), 0)


def test_jacobian_of_eq_9_at_the_origin():
    alpha = jnp.array([0.0, 0.5, 1.0])
    jacobian = jax.jit(jax.jacrev(lambda x: unitize_bounded(x, alpha)))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian, np.diag([1.0, 2.0, 0.0]))


def test_eq_9_changes_sign_beyond_its_singular_radius():
    # For alpha = −1/2, the divisor is zero at ‖x‖ = 1 − 1/alpha = 3.
    inside, outside = (unitize_bounded(jnp.array([r, 0.0]), -0.5)[0] for r in (2.9, 3.1))
    assert inside > 0 > outside


@pytest.mark.parametrize("alpha", [-0.5, [-0.5, -0.5, -0.5], [-0.5, -0.5, 0.5]])
def test_eq_9_is_infinite_at_its_singular_radius(alpha):
    """At ‖x‖ = 3, the divisor of alpha −1/2 is 0, and the divisor of alpha 1/2 is 2."""
    found = unitize_bounded(jnp.array([-1.0, 2.0, 2.0]), jnp.asarray(alpha))
    last = 1.0 if np.ravel(alpha)[-1] == 0.5 else np.inf
    np.testing.assert_allclose(found, [-np.inf, np.inf, last], rtol=1e-12)


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 6)), min_size=3, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_eq_9_is_bounded_by_the_smallest_alpha_and_eq_10_is_larger(alpha, x):
    a, x = jnp.array(alpha), jnp.array(x)
    bounded = np.asarray(jitted(unitize_bounded)(x, a))
    r = np.linalg.norm(x)
    assert np.linalg.norm(bounded) <= max(r, 1) * (1 + 1e-12)
    if min(alpha) > 0:
        assert np.linalg.norm(bounded) <= (1 / min(alpha)) * (1 + 1e-12)
    larger = np.asarray(jitted(unitize)(x, a, eps=0.0))
    assert (abs(larger) >= abs(bounded) * (1 - 1e-9)).all()


def test_eq_10_breaks_the_bound_that_eq_9_obeys():
    x = jnp.array([100.0, 0.0])
    assert jnp.linalg.norm(unitize_bounded(x, 0.5)) < 2 < jnp.linalg.norm(unitize(x, 0.5))


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_eq_10_against_its_formula(key, eps):
    x, alpha = np.asarray(vectors(key)), np.array([-0.5, 0.0, 0.4, 1.0])
    p = 1 / np.sqrt(np.sum(x**2, 1, keepdims=True) + eps)
    y = unitize(jnp.asarray(x), jnp.asarray(alpha), eps=eps)
    np.testing.assert_allclose(y, (alpha * p + 1 - alpha) * x, rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_an_alpha_for_each_feature_lies_along_the_axis(axis):
    """All three axes have the same size, so a wrong axis would raise no error."""
    x, alpha = np.random.default_rng(0).normal(size=(4, 4, 4)), np.array([0.1, 0.9, 0.4, 0.7])
    along = alpha.reshape([-1 if i == axis % 3 else 1 for i in range(3)])
    square = (x**2).sum(axis, keepdims=True)
    arguments = jnp.asarray(x), jnp.asarray(alpha)
    expected = (along / np.sqrt(square + 1e-5) + 1 - along) * x
    np.testing.assert_allclose(unitize(*arguments, axis=axis), expected, rtol=1e-12)
    expected = x / (along * np.sqrt(square) + 1 - along)
    np.testing.assert_allclose(unitize_bounded(*arguments, axis=axis), expected, rtol=1e-12)


@pytest.mark.parametrize("function", [unitize, unitize_bounded])
def test_alpha_zero_is_the_identity_to_the_last_bit(key, function):
    x = vectors(key).astype("float32")
    np.testing.assert_array_equal(function(x, 0.0), x)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_gradients_are_finite_at_the_zero_vector(alpha):
    for function in (
        lambda x, a: unit_vector(x),
        unitize,
        unitize_bounded,
        lambda x, a: unitize(x, a, eps=0.0),
    ):
        for a in (jnp.array(alpha), jnp.full(3, alpha)):
            for part in jax.jit(jax.jacrev(function, (0, 1)))(jnp.zeros(3), a):
                assert np.isfinite(part).all()


def test_the_slope_of_eq_10_at_the_origin():
    jacobian = jax.jit(jax.jacrev(lambda x: unitize(x, 0.5, eps=1e-3)))(jnp.zeros(2))
    np.testing.assert_allclose(jacobian, np.eye(2) * (0.5 / np.sqrt(1e-3) + 0.5), rtol=1e-12)


@several_keys
def test_gradients(key):
    x, alpha = vectors(key), jnp.array([0.1, 0.5, 0.9, 1.0])
    check_grads(jax.jit(unit_vector), (x,), order=2, modes=["rev"])
    check_grads(jax.jit(unitize), (x, alpha), order=2, modes=["rev"])
    check_grads(jax.jit(unitize_bounded), (x, alpha), order=2, modes=["rev"])


@pytest.mark.parametrize("axis", [0, 1, 2, -3, -2, -1])
def test_alpha_has_the_size_of_its_axis_and_no_other(axis):
    """The three axes have different sizes, so an alpha fits only the axis that `axis` names."""
    x = np.random.default_rng(1).normal(size=(2, 3, 4))
    square = (x**2).sum(axis, keepdims=True)
    for size in (1, 2, 3, 4):
        alpha = np.linspace(0.1, 0.8, size)
        along = alpha.reshape([-1 if i == axis % 3 else 1 for i in range(3)])
        for function, expected in (
            (unitize, lambda a: (a / np.sqrt(square + 1e-5) + 1 - a) * x),
            (unitize_bounded, lambda a: x / (a * np.sqrt(square) + 1 - a)),
        ):
            arguments = jnp.asarray(x), jnp.asarray(alpha)
            if size == x.shape[axis]:
                found = function(*arguments, axis=axis)
                np.testing.assert_allclose(found, expected(along), rtol=1e-12)
                continue
            message = rf"^alpha must be .* shape \({x.shape[axis]},\), .*; got \({size},\)$"
            with pytest.raises(ValueError, match=message):
                function(*arguments, axis=axis)
