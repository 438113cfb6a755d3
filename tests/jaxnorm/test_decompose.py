"""Recentering and rescaling: how the four functions differ, and what each does not change."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxnorm import moments, recenter, rescale, rescale_rms, standardize
from tests.support.gradients import several_keys

PARTS = (recenter, rescale, rescale_rms, standardize)
SCALES = (rescale, rescale_rms, standardize)


def skewed(shape=(9, 4), offset=3.0):
    return np.random.default_rng(0).gamma(2.0, size=shape) + offset


def test_each_part_against_its_formula():
    x = skewed()
    centered = x - x.mean(0)
    deviation = np.sqrt(np.mean(centered**2, 0))
    expected = (centered, x / deviation, x / np.sqrt(np.mean(x**2, 0)), centered / deviation)
    for part, wanted in zip(PARTS, expected, strict=True):
        np.testing.assert_allclose(part(jnp.asarray(x)), wanted, rtol=1e-12)


def test_the_four_parts_differ():
    results = [part(jnp.asarray(skewed())) for part in PARTS]
    for a, b in itertools.combinations(results, 2):
        assert jnp.abs(a - b).max() > 0.1


def test_recentering_then_rescaling_is_standardizing():
    x = jnp.asarray(skewed())
    for scale in (rescale, rescale_rms):
        np.testing.assert_allclose(scale(recenter(x)), standardize(x), rtol=1e-12)


def test_recentering_a_linear_network_acts_once(key):
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (6, 5)) + 2
    v, w = (jax.random.normal(k, (5, 5)) for k in keys[1:])
    np.testing.assert_allclose(recenter(recenter(x @ v) @ w), recenter(x) @ v @ w, atol=1e-12)


def test_two_samples_standardize_to_plus_and_minus_one():
    y = standardize(jnp.array([[0.3, -7.0], [0.1, 9.0]]))
    np.testing.assert_allclose(y, [[1, -1], [-1, 1]], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [0.1, 1e4 / 3])
def test_a_constant_feature_is_centered_to_zero_and_left_undivided(dtype, value):
    x = jnp.full((7, 2), value, dtype)  # in floating point, 7 × 0.1 / 7 differs from 0.1
    np.testing.assert_array_equal(recenter(x), 0)
    np.testing.assert_array_equal(standardize(x), 0)
    np.testing.assert_array_equal(rescale(x), x)
    np.testing.assert_array_equal(rescale_rms(jnp.zeros_like(x)), 0)


@pytest.mark.parametrize("part", PARTS)
def test_gradients_are_finite_for_constant_features(part):
    x = jnp.zeros((4, 2)).at[:, 1].set(5.0)
    assert jnp.isfinite(jax.grad(lambda x: jnp.sum(part(x) ** 3 + part(x)))(x)).all()


@pytest.mark.parametrize("part", PARTS)
@several_keys
def test_gradients(part, key):
    x = jax.random.normal(key, (5, 3))
    check_grads(jax.jit(part), (x,), order=2, modes=["rev"])
    check_grads(jax.jit(part), (x,), order=1, modes=["fwd"])


@pytest.mark.parametrize("part", SCALES)
def test_eps_is_added_to_the_mean_square(part):
    x = jnp.asarray(skewed())
    ratio = part(x, eps=0.0) / part(x, eps=0.5)
    about = 0 * x[:1] if part is rescale_rms else x.mean(0, keepdims=True)
    square = jnp.mean((x - about) ** 2, 0)
    expected = jnp.sqrt((square + 0.5) / square)
    np.testing.assert_allclose(ratio, jnp.tile(expected, (len(x), 1)), rtol=1e-10)


@pytest.mark.parametrize("part", SCALES)
@pytest.mark.parametrize("unit", [1e-30, 1e-3, 1e30])
def test_eps_has_its_size_whatever_the_unit_of_the_data(part, unit):
    x = (skewed() * unit).astype(np.float32)
    exact = x.astype(np.float64)
    centered = exact - exact.mean(0)
    square = np.mean((exact if part is rescale_rms else centered) ** 2, 0)
    expected = (centered if part is standardize else exact) / np.sqrt(square + 0.25)
    found = part(jnp.asarray(x), eps=0.25)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("axis", [0, -1, (0, 2), (1, 2)])
def test_axes_are_those_that_are_named(part, axis):
    x = jnp.asarray(skewed((3, 4, 5)))
    axes = axis if isinstance(axis, tuple) else (axis,)
    front = jnp.moveaxis(x, axes, range(len(axes)))
    rows = part(front.reshape(-1, *front.shape[len(axes) :])).reshape(front.shape)
    np.testing.assert_allclose(part(x, axis=axis), jnp.moveaxis(rows, range(len(axes)), axes))


@pytest.mark.parametrize("part", PARTS)
def test_float32_survives_a_large_mean(part):
    x = (skewed((512, 3)) + 1e4).astype(np.float32)
    wide = part(jnp.asarray(x, jnp.float64))
    np.testing.assert_allclose(part(jnp.asarray(x)), wide, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("part", PARTS)
def test_bfloat16_in_and_out(part):
    assert part(jnp.asarray(skewed(), jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("part", PARTS)
def test_wrong_axes_are_refused(part):
    with pytest.raises(ValueError, match="axis must name axes of an array of shape"):
        part(jnp.ones((2, 3)), axis=2)
    with pytest.raises(ValueError, match="axis must hold at least one sample"):
        part(jnp.ones((0, 3)))


@pytest.mark.parametrize("part", [*PARTS, moments])
def test_every_named_axis_has_samples_and_others_may_be_empty(part):
    for shape, axis in [((0, 3), (0, 1)), ((0, 3), (1, 0)), ((2, 3, 0), [-1, 0]), ((0, 0), (0, 1))]:
        with pytest.raises(ValueError, match="axis must hold at least one sample"):
            part(jnp.ones(shape), axis=axis)
    for axis in (0, (0, -1)):
        assert jax.tree.leaves(part(jnp.ones((2, 0, 3)), axis=axis))[0].size == 0


@pytest.mark.parametrize("part", PARTS)
def test_integers_are_refused(part):
    with pytest.raises(TypeError):
        part(jnp.ones((2, 3), int))
