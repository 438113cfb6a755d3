"""Earth mover distances in one and in many dimensions, compared with SciPy and closed forms."""

import math
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from jaxnorm.shift import (
    _emd_1d,
    emd,
    emd_1d,
    emd_sliced,
    mean_projection,
    paired_upper_bound,
    transport_plan,
)
from tests.support.gradients import several_keys
from tests.support.jitted import jitted
from tests.support.numpy_programs import evaluated
from tests.support.other_platforms import as_on

fast_emd_1d, fast_emd_sliced = jitted(emd_1d), jitted(emd_sliced)


# Only four sizes are drawn, because JAX compiles a program for each pair of sizes.
sizes = st.sampled_from([1, 2, 5, 12])


@given(sizes, sizes, st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_any_two_sample_sizes_against_scipy(n, m, seed):
    rng = np.random.default_rng(seed)
    # The sample x has heavy tails, and y has ties.
    x, y = rng.standard_t(2, n), rng.integers(-2, 3, m).astype(float)
    expected = scipy.stats.wasserstein_distance(x, y)
    found = fast_emd_1d(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_quantiles_of_50_000_samples_are_paired():
    """The product of the two sizes exceeds the largest int32."""
    n, m = 50_000, 50_001
    rows, columns, widths = _emd_1d._quantile_pairs(n, m)
    middles = np.cumsum(widths) - widths / 2
    np.testing.assert_array_equal(rows, np.floor(n * middles))
    np.testing.assert_array_equal(columns, np.floor(m * middles))
    np.testing.assert_allclose(widths.sum(), 1, rtol=1e-12)


def test_columns_that_are_sorted_in_several_parts_against_scipy(monkeypatch):
    monkeypatch.setattr(_emd_1d, "CACHED", 1)
    monkeypatch.setattr(_emd_1d, "NARROWEST", 3)  # the 7 columns become parts of 3, 3 and 1
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 5, (2, 13, 7))
    order = np.argsort(x, 0)
    found, rows = _emd_1d._sorting_network(
        jnp.asarray(x), jnp.asarray(np.broadcast_to(np.arange(13)[:, None], x.shape))
    )
    np.testing.assert_array_equal(found, np.take_along_axis(x, order, 0))
    np.testing.assert_array_equal(rows, order)
    value = jax.value_and_grad(lambda x, y: emd_1d(x, y).sum(), (0, 1))
    total, (of_x, of_y) = value(jnp.asarray(x), jnp.asarray(y))
    each = [scipy.stats.wasserstein_distance(a, b) for a, b in zip(x.T, y.T, strict=True)]
    np.testing.assert_allclose(total, sum(each), rtol=1e-12)
    signs = np.sign(np.sort(x, 0) - np.sort(y, 0)) / 13
    np.testing.assert_array_equal(np.take_along_axis(np.asarray(of_x), order, 0), signs)
    np.testing.assert_array_equal(np.take_along_axis(np.asarray(of_y), np.argsort(y, 0), 0), -signs)


@given(sizes, sizes, st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_weighted_samples_against_scipy(n, m, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(-3, 4, n).astype(float), rng.standard_t(2, m)
    p, q = rng.integers(0, 4, n) + np.eye(n)[0], rng.uniform(0.1, 1, m)
    expected = scipy.stats.wasserstein_distance(x, y, p, q)
    found = fast_emd_1d(
        jnp.asarray(x), jnp.asarray(y), x_weights=jnp.asarray(p), y_weights=jnp.asarray(q)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_equal_weights_are_no_weights(key):
    x, y = jax.random.normal(key, (2, 8, 3))
    weighted = fast_emd_1d(x, y[:5], y_weights=jnp.full(5, 7.0))
    np.testing.assert_allclose(weighted, fast_emd_1d(x, y[:5]))


@pytest.mark.parametrize("distance", [fast_emd_1d, emd])
@pytest.mark.parametrize("unit", [1e-300, 1.5e308])
def test_only_the_ratios_of_weights_matter(distance, unit):
    """A third of the weight moves by 1, and two thirds by 2; both units fit only float64."""
    x, y = jnp.array([[0.0], [3.0]]), jnp.array([[1.0], [5.0]])
    weights = unit * jnp.array([0.5, 1.0])
    np.testing.assert_allclose(distance(x, y, x_weights=weights, y_weights=weights), 5 / 3)


def test_the_gradient_of_a_weight_is_that_of_its_share():
    """The share p of the first sample moves by 1, and 1 − p by 2, so the slope is −1."""
    x, y = jnp.array([[0.0], [3.0]]), jnp.array([[1.0], [5.0]])
    for unit in (1.0, 1e-100, 1e100):
        weights = unit * jnp.array([0.5, 1.0])
        slope = jax.grad(lambda w: fast_emd_1d(x, y, x_weights=w, y_weights=w)[0])(weights)
        np.testing.assert_allclose(unit * slope, np.array([-1, 0.5]) / 1.5**2, rtol=1e-12)


def test_features_are_measured_one_by_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2, 3)), rng.normal(1.0, size=(20, 2, 3))
    found = np.asarray(fast_emd_1d(jnp.asarray(x), jnp.asarray(y)))
    for i, j in np.ndindex(2, 3):
        expected = scipy.stats.wasserstein_distance(x[:, i, j], y[:, i, j])
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-12)


def test_layers_are_a_tree(key):
    before = {"a": jax.random.normal(key, (9, 3)), "b": jnp.zeros((9, 2, 2))}
    after = jax.tree.map(lambda x: x + 2, before)
    found = jax.jit(lambda x, y: jax.tree.map(emd_1d, x, y))(before, after)
    jax.tree.map(lambda d: np.testing.assert_allclose(d, 2, rtol=1e-12), found)
    assert found["b"].shape == (2, 2)


def test_a_shift_is_measured_exactly_and_scales_are_units(key):
    x = jax.random.normal(key, (50, 4))
    np.testing.assert_allclose(fast_emd_1d(x, x + 3), 3, rtol=1e-12)
    mean = 5 * np.abs(x).mean(0)
    np.testing.assert_allclose(fast_emd_1d(5 * x, 0 * x), mean, rtol=1e-12)


def test_the_distance_of_two_gaussians(key):
    # The exact distance is W₁(N(0, 1), N(0, 4)) = √(2/π).
    x, y = jax.random.normal(key, (2, 200_000))
    np.testing.assert_allclose(fast_emd_1d(x, 2 * y), (2 / np.pi) ** 0.5, atol=0.01)


def test_float32_keeps_six_digits():
    rng = np.random.default_rng(1)
    x, y = rng.normal(1e3, 1.0, (2, 4096, 8))
    wide = fast_emd_1d(jnp.asarray(x), jnp.asarray(y) + 1)
    narrow = fast_emd_1d(jnp.asarray(x, "float32"), jnp.asarray(y, "float32") + np.float32(1))
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


@pytest.mark.parametrize("weights", [None, jnp.array([0.5, 1.0, 2.0, 0.1])])
@several_keys
def test_gradients(key, weights):
    x, y = jax.random.normal(key, (2, 6, 2))
    check_grads(jax.jit(lambda x, y: emd_1d(x, y, y_weights=weights)), (x, y[:4]), order=1)


def test_the_gradient_pulls_every_sample_to_its_partner():
    gradient = jax.jit(jax.grad(emd_1d))
    y = jnp.array([1.0, 7.0, 4.0])
    for x, signs in (([2.0, 0.0, 9.0], [-1, -1, 1]), ([9.0, 0.0, 2.0], [1, -1, -1])):
        np.testing.assert_allclose(gradient(jnp.array(x), y), np.array(signs) / 3, rtol=1e-12)


@pytest.mark.parametrize("features", [(), (3,), (2, 2)])
def test_gradients_of_many_samples_with_ties(features):
    """Some samples are equal. The gradients sum to the derivative for a common shift."""
    rng = np.random.default_rng(2)
    x, y = (np.maximum(rng.normal(size=(100, *features)), 0) for _ in range(2))
    y = y + np.where(rng.uniform(size=y.shape) < 0.5, 0.01, -0.01)
    gradient = np.asarray(jax.jit(jax.grad(lambda x, y: emd_1d(x, y).sum()))(x, y))
    signs = np.sign(np.sort(x, 0) - np.sort(y, 0)) / 100
    np.testing.assert_allclose(gradient.sum(0), signs.sum(0), rtol=1e-12, atol=1e-14)
    moved = x - 1e-6 * gradient
    for j in np.ndindex(features):
        lost = -np.diff([scipy.stats.wasserstein_distance(z[:, *j], y[:, *j]) for z in (x, moved)])
        np.testing.assert_allclose(lost, 1e-6 * np.square(gradient[:, *j]).sum(), rtol=1e-6)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("features", [(3,), (2, 3)])
@pytest.mark.parametrize("m", [5, 7])
def test_the_form_for_an_accelerator_has_the_distance_and_the_gradient(m, features, platform):
    """If there are several axes, accelerators sort the first one by another function than CPUs."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(7, *features)), rng.normal(0.5, 2, (m, *features))
    alone = as_on(platform, emd_1d)(jnp.asarray(x), jnp.asarray(y))
    value = as_on(platform, jax.value_and_grad(lambda x, y: emd_1d(x, y).sum(), (0, 1)))
    total, (of_x, of_y) = value(jnp.asarray(x), jnp.asarray(y))
    expected = np.empty(features)
    for j in np.ndindex(features):
        a, b = x[:, *j], y[:, *j]
        expected[j] = scipy.stats.wasserstein_distance(a, b)
        if m == 7:
            signs = np.sign(np.sort(a) - np.sort(b)) / 7
            np.testing.assert_allclose(np.asarray(of_x)[:, *j][np.argsort(a)], signs)
            np.testing.assert_allclose(np.asarray(of_y)[:, *j][np.argsort(b)], -signs)
    np.testing.assert_allclose(alone, expected, rtol=1e-12)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-12)


def test_the_standard_error_of_slices_is_that_of_independent_directions(key):
    """With three projections, divisions by n and by n − 1 give different standard errors."""
    x = jnp.zeros((1, 2))
    y = jnp.ones((1, 2))
    found = fast_emd_sliced(key, x, y, projections=3)
    directions = np.asarray(jax.random.normal(key, (2, 3)))
    projected = np.abs(directions.sum(0) / np.linalg.norm(directions, axis=0))
    np.testing.assert_allclose(found.distance, projected.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.stderr, projected.std(ddof=1) / 3**0.5, rtol=1e-12)
    assert np.isnan(fast_emd_sliced(key, x, y, projections=1).stderr)


def test_the_standard_error_of_equal_projections_has_a_gradient(key):
    x = jax.random.normal(key, (16, 3))
    gradient = jax.grad(lambda a: fast_emd_sliced(key, a, x).stderr)(x)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("unit", [1e-25, 1e20, 1e30])
def test_slices_in_any_unit(key, unit):
    x, y = jax.random.normal(key, (2, 40, 3), "float32")
    expected = fast_emd_sliced(key, x, y, projections=8)
    found = fast_emd_sliced(key, unit * x, unit * y, projections=8)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a / np.float32(unit), b, rtol=1e-3), found, expected
    )


def sliced(key, x, y):
    return fast_emd_sliced(key, x, y, projections=8).distance


@pytest.mark.parametrize("distance", [emd, emd_1d, paired_upper_bound, emd_sliced])
def test_distances_far_from_the_origin(distance, key):
    """Near 2¹⁹, float32 holds multiples of 1/16 exactly, but not their products."""
    x, y = jnp.round(16 * jax.random.normal(key, (2, 40, 3), "float32")) / 16
    if distance is emd_sliced:
        distance = partial(sliced, key)
    far = (part + jnp.float32(2**19) for part in (x, y))
    np.testing.assert_allclose(distance(*far), distance(x, y), rtol=1e-4)


def test_nan_in_a_feature_stays_there_under_jit():
    x = jnp.array([[0.0, jnp.nan], [1.0, 2.0], [0.5, 1.0]])
    found = jax.jit(emd_1d)(x, jnp.ones((3, 2)))
    beside_a_gradient, _ = jax.jit(lambda x: jax.vjp(lambda x: emd_1d(x, jnp.ones((3, 2))), x))(x)
    np.testing.assert_array_equal(found, beside_a_gradient)
    assert found[0] == 0.5
    assert jnp.isnan(found[1])


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_an_infinite_element_makes_its_feature_infinite_under_jit(infinity):
    """Three rows are padded to four by the sorting network."""
    x, y = np.random.default_rng(0).normal(3, 1, (2, 3, 2))
    x[1, 0] = infinity
    expected = [np.inf, scipy.stats.wasserstein_distance(x[:, 1], y[:, 1])]
    for f in (emd_1d, lambda x, y: jax.jvp(lambda x: emd_1d(x, y), (x,), (x,))[0]):
        np.testing.assert_allclose(jax.jit(f)(*map(jnp.asarray, (x, y))), expected, rtol=1e-12)


# 30 points give an assignment problem, and 20 points give a linear program.
@pytest.mark.parametrize("m", [30, 20])
def test_costs_are_in_float64_whatever_the_dtype_of_jax(m):
    """In float32, the distances of points near 8192 would have errors as large as the distances."""
    rng = np.random.default_rng(0)
    x, y = (8192 + rng.integers(0, 64, (n, 1)).astype(np.float32) / 64 for n in (30, m))
    x[0], y[0] = -8192, -8192
    with jax.enable_x64(False):
        found = emd(jnp.asarray(x), jnp.asarray(y))
    expected = scipy.stats.wasserstein_distance(x[:, 0].astype(float), y[:, 0].astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("m", [6, 4])
def test_distances_of_half_precision_samples_are_those_of_their_float64_values(dtype, m):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(n, 1, (n, 2)), dtype) for n in (6, m))
    a, b = (np.asarray(sample).astype(np.float64) for sample in (x, y))
    expected = scipy.stats.wasserstein_distance_nd(a, b)
    np.testing.assert_allclose(emd(x, y), expected, rtol=1e-6)
    np.testing.assert_allclose(np.sum(transport_plan(x, y) * cdist(a, b)), expected, rtol=1e-6)


def test_a_sample_may_be_a_constant_of_a_traced_function(key):
    x, y = jax.random.normal(key, (2, 6, 2))
    np.testing.assert_allclose(jax.jit(lambda y: emd_1d(x, y))(y), emd_1d(x, y), rtol=1e-12)


@pytest.mark.parametrize("distance", [emd_1d, emd])
def test_samples_that_are_no_samples_are_refused(distance):
    with pytest.raises(ValueError, match=r"x must have at least one sample .* got shape \(0, 1\)"):
        distance(jnp.ones((0, 1)), jnp.ones((2, 1)))
    with pytest.raises(ValueError, match="y must be finite; 1 of 2 elements are not"):
        distance(jnp.ones((2, 1)), jnp.array([[1.0], [math.inf]]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("distance", [emd_1d, emd])
def test_other_features_and_weights_are_refused(distance):
    with pytest.raises(ValueError, match=r"the same features; got \(2,\) and \(3,\)"):
        distance(jnp.ones((4, 2)), jnp.ones((4, 3)))
    if distance is emd_1d:
        with pytest.raises(ValueError, match=r"weights must have shape \(4,\), .* got \(3,\)"):
            distance(jnp.ones((4, 2)), jnp.ones((4, 2)), x_weights=jnp.ones(3))


def test_weights_of_one_sample_alone_count():
    # If one sample has the weights 0 and 1 at the points 0 and 1, and the other sample has equal
    # weights, the distance W₁ is 1/2.
    x, weights = jnp.array([[0.0], [1.0]]), jnp.array([0.0, 1.0])
    np.testing.assert_allclose(emd(x, x, x_weights=weights), 0.5, rtol=1e-9)
    np.testing.assert_allclose(emd(x, x, y_weights=weights), 0.5, rtol=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 7])
def test_joint_distance_against_an_independent_assignment(dims):
    rng = np.random.default_rng(dims)
    x, y = rng.normal(size=(40, dims)), rng.standard_t(2, size=(40, dims)) + 100
    cost = cdist(x, y)
    expected = cost[linear_sum_assignment(cost)].mean()
    np.testing.assert_allclose(emd(jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-12)


def test_joint_distance_of_one_feature_is_the_one_dimensional(key):
    x, y = jax.random.normal(key, (2, 50, 1))
    np.testing.assert_allclose(emd(x, y), emd_1d(x, y)[0], rtol=1e-12)


def test_joint_distance_of_other_sizes_and_weights():
    # Two copies of each point, or a common factor of all weights, do not change the distance.
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(2, 12, 3)))
    expected = emd(x, y)
    doubled = jnp.concatenate([x, x])
    np.testing.assert_allclose(emd(doubled, y), expected, rtol=1e-9)
    weighted = emd(x, y, x_weights=jnp.full(12, 2.0), y_weights=jnp.full(12, 0.5))
    np.testing.assert_allclose(weighted, expected, rtol=1e-9)


def test_too_large_a_linear_program_names_the_cure(monkeypatch):
    with pytest.raises(
        ValueError, match=r"1,000,000 pairs; got 1,000 times 1,001: use samples of equal"
    ):
        emd(jnp.ones((1000, 1)), jnp.ones((1001, 1)))
    monkeypatch.setattr(sys.modules[emd.__module__], "_UNKNOWNS", 6)  # enough for 2 · 3 unknowns
    np.testing.assert_allclose(emd(jnp.zeros((2, 1)), jnp.ones((3, 1))), 1)


@pytest.mark.parametrize("sizes", [(6, 6), (7, 4)])
def test_a_plan_is_the_cheapest_and_its_sums_are_the_weights(sizes):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(n, 3))) for n in sizes)
    p, q = (jnp.asarray(rng.uniform(size=n)) for n in sizes)
    for weights in ({}, {"x_weights": p, "y_weights": q}):
        plan = transport_plan(x, y, **weights)
        masses = list(weights.values()) or [np.ones(n) for n in sizes]
        for k in (0, 1):
            np.testing.assert_allclose(plan.sum(1 - k), masses[k] / masses[k].sum())
        expected = scipy.stats.wasserstein_distance_nd(x, y, *masses)
        np.testing.assert_allclose(np.sum(plan * cdist(x, y)), expected)
        np.testing.assert_allclose(emd(x, y, **weights), expected)


@pytest.mark.parametrize("m", [4, 3])
def test_samples_at_one_point_have_no_distance(m):
    assert emd(jnp.full((4, 2), 3.0), jnp.full((m, 2), 3.0)) == 0


@pytest.mark.parametrize("unit", [1e-30, 1e-8, 1e20])
def test_a_plan_does_not_depend_on_the_unit(unit):
    x, y = (jnp.asarray(np.random.default_rng(n).normal(size=(n, 3))) for n in (20, 31))
    cost = np.sum(transport_plan(unit * x, unit * y) * cdist(x, y))
    np.testing.assert_allclose(cost, scipy.stats.wasserstein_distance_nd(x, y))
    np.testing.assert_allclose(emd(unit * x, unit * y) / unit, cost)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["x_weights", "y_weights"])
def test_weights_of_a_feature_must_be_finite(name, number):
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        emd_1d(jnp.ones(2), jnp.ones(2), **{name: jnp.array([1.0, number])})


@pytest.mark.parametrize("in_numpy", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_gradient_of_more_samples_than_an_int16_counts(in_numpy, monkeypatch):
    """XLA takes seconds to compile the sorting network, so `in_numpy` replaces the network."""
    n = 2**15 + 3
    x, y = np.random.default_rng(0).permutation(n), np.arange(n) + 2.2
    gradient, at = jax.grad(lambda x: emd_1d(x, jnp.asarray(y))), jnp.asarray(1.5 * x)
    if in_numpy:
        sort = partial(jax.lax.sort, dimension=0, num_keys=1)
        monkeypatch.setattr(_emd_1d, "_sorting_network", lambda *arrays: tuple(sort(arrays)))
        found = evaluated(gradient, at)
    else:
        found = jax.jit(gradient)(at)
    np.testing.assert_allclose(found, np.sign(1.5 * x - y[x]) / n, rtol=1e-12)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, np.nan], [1.0, np.inf]])
def test_weights_that_are_no_masses_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights must (be finite|not all be zero)"):
        emd(jnp.ones((2, 1)), jnp.ones((3, 1)), x_weights=jnp.array(weights))


def test_points_that_nearly_meet_far_from_the_origin(key):
    # Products of coordinates of size 1e8 would lose all digits of distances of size 1.
    x = 1e8 + jax.random.normal(key, (64, 5))
    np.testing.assert_allclose(emd(x, x[::-1] + 1e-3), 1e-3 * 5**0.5, rtol=1e-4)


def test_the_cost_matrix_is_made_in_blocks(monkeypatch, key):
    x, y = jax.random.normal(key, (2, 30, 4))
    expected = emd(x, y)
    module = sys.modules[emd.__module__]
    monkeypatch.setattr(module, "_BLOCK", 100)
    np.testing.assert_allclose(emd(x, y), expected, rtol=1e-12)


@pytest.mark.parametrize("dims", [1, 3, 50])
def test_slices_of_a_shift(key, dims):
    # For a shift s, the distance along a direction θ is |θ·s|. Over all directions, |θ·s| has the
    # mean ‖s‖ E |θ₁| and the maximum ‖s‖.
    x = jax.random.normal(key, (20, dims))
    shift = jnp.linspace(1.0, 2.0, dims)
    found = fast_emd_sliced(key, x, x + shift[None], projections=4000)
    length = np.linalg.norm(shift)
    expected = length * mean_projection(dims)
    assert found.stderr < 0.02 * found.distance
    assert abs(found.distance - expected) < 4 * found.stderr + 1e-9
    assert found.largest <= length * (1 + 1e-9)


def test_slices_and_exact_distance(key):
    x, y = jax.random.normal(key, (2, 200, 4))
    found, exact = fast_emd_sliced(key, x, 2 * y), emd(x, 2 * y)
    assert found.distance < found.largest < exact
    assert found.distance / mean_projection(4) < exact


def test_the_distribution_of_projections(key):
    theta = np.asarray(jax.random.normal(key, (200_000, 7)))
    first = np.abs(theta[:, 0]) / np.linalg.norm(theta, axis=1)
    stderr = first.std() / len(first) ** 0.5
    assert abs(first.mean() - mean_projection(7)) < 4 * stderr
    np.testing.assert_allclose(mean_projection(2), 2 / np.pi, rtol=1e-12)


def test_no_projection_is_refused(key):
    with pytest.raises(ValueError, match="projections must be at least 1; got 0"):
        emd_sliced(key, jnp.ones((2, 2)), jnp.ones((2, 2)), projections=0)
    with pytest.raises(ValueError, match="dims must be positive; got 0"):
        mean_projection(0)


@pytest.mark.parametrize("name", ["x_weights", "y_weights"])
def test_no_weight_is_negative(name):
    x = jnp.arange(3.0)[:, None]
    for distance in (emd, emd_1d):
        with pytest.raises(ValueError, match=rf"^{name} must not be negative; the lowest is -0.5$"):
            distance(x, x, **{name: jnp.array([1.0, -0.5, 3.0])})
