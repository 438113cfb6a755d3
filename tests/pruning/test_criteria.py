"""Tests of the criteria that score filters, and of the geometric median."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import example, given, settings, strategies as st
from jax.test_util import check_grads

import pruning
from pruning import criteria
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

CRITERIA = {name: jitted(criterion) for name, criterion in pruning.CRITERIA.items()}
l1_norm, l2_norm, fermat, gm = (CRITERIA[name] for name in ("l1", "l2", "fermat", "gm"))
geometric_median, optimality_gap, repr_score, scores = map(
    jitted,
    (pruning.geometric_median, criteria.optimality_gap, criteria.repr_score, criteria.scores),
)
jacobian = jax.jit(jax.jacobian(geometric_median))
slow = partial(pytest.param, marks=pytest.mark.slow)


def slope(x, filters):
    """The length of the smallest subgradient of the sum of distances to `filters`, at `x`."""
    away = np.asarray(x, float) - np.asarray(filters, float)
    lengths = np.linalg.norm(away, axis=1)
    units = away[lengths > 0] / lengths[lengths > 0, None]
    return max(np.linalg.norm(units.sum(0)) - np.sum(lengths == 0), 0)


@pytest.mark.parametrize("shape", [(12, 4), slow((100, 9))])
def test_the_gradient_vanishes_at_the_median(shape, key):
    filters = jax.random.normal(key, shape)
    assert slope(geometric_median(filters), filters) < 1e-12


def test_the_gradient_vanishes_for_heavy_tails_and_in_float32(key):
    filters = jax.random.cauchy(key, (12, 4))
    assert slope(geometric_median(filters), filters) < 1e-12
    single = filters.astype(jnp.float32)
    found = geometric_median(single)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, geometric_median(single.astype(jnp.float64)), atol=1e-5)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=6, max_size=6))
@settings(max_examples=150, deadline=None)
# With Weiszfeld's steps alone, this example would be slow.
@example([(0, 0), (-1, 0), (-2, 0), (-2, 0), (-2, 0), (3, 1)])
def test_points_of_a_grid_satisfy_the_condition_of_vardi_and_zhang(points):
    filters = np.array(points, float)
    found = geometric_median(jnp.asarray(filters))
    assert slope(found, filters) < 1e-10


def test_shorter_steps_settle_where_whole_steps_of_newton_go_to_and_fro():
    filters = np.array([[1.4, 1.3], [0.5, 1.2], [-0.8, -1.0], [-0.7, -0.8]])
    assert slope(geometric_median(jnp.asarray(filters)), filters) < 1e-12


def test_the_median_of_an_independent_minimiser(key):
    filters = np.asarray(jax.random.normal(key, (12, 4)))

    def total(x):
        return np.linalg.norm(x - filters, axis=1).sum()

    expected = scipy.optimize.minimize(total, filters.mean(0), method="BFGS", tol=1e-12).x
    np.testing.assert_allclose(geometric_median(jnp.asarray(filters)), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # The median is the centroid.
        ([[1, 0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]], [0, 0]),
        ([[0, 0], [1, 0], [-0.5, 0.2]], [0, 0]),  # The vertex of an angle above 120 degrees.
        ([[0, 0], [1, 0], [-0.5, 3**0.5 / 2]], [0, 0]),  # The vertex of an angle of 120 degrees.
        ([[0, 0], [4, 0], [4, 4], [0, 4]], [2, 2]),  # The crossing of the diagonals.
        ([[0, 0], [4, 0], [3, 3], [0, 2]], [4 / 3, 4 / 3]),
        ([[0, 0], [4, 0], [1, 1], [1, 5]], [1, 1]),  # The point inside the triangle of the others.
        ([[7, 1], [7, 1], [5, 3], [2, 9]], [7, 1]),  # Half of the filters are equal.
        ([[1, 1], [1, 1], [1, 1]], [1, 1]),
        ([[0, 1], [2, 5]], [1, 3]),
        ([[0, 0], [1, 1], [2, 2], [5, 5]], [1.5, 1.5]),  # The midpoint of collinear filters.
        ([[9, 9], [0, 0], [1, 1]], [1, 1]),  # The middle of collinear filters.
        ([[1e4, 0], [1e4, 2], [1e4, 3], [1e4, 9]], [1e4, 2.5]),
    ],
)
def test_closed_forms_of_the_fermat_point(points, expected):
    twelve = jnp.array(points * (12 // len(points)), float)  # repeated points have the same median
    np.testing.assert_allclose(geometric_median(twelve), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("points", "expected"), [([[3], [1], [9], [4]], [3.5]), ([[3, 4]], [3, 4])]
)
def test_the_median_of_numbers_and_of_one_filter(points, expected):
    np.testing.assert_array_equal(geometric_median(jnp.array(points, float)), expected)


def test_sides_of_an_acute_triangle_are_seen_under_120_degrees():
    filters = np.array([[0, 0], [5, 0.5], [2, 4]] * 4)
    away = (filters - np.asarray(geometric_median(jnp.asarray(filters))))[:3]
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    np.testing.assert_allclose(away @ away.T - 1.5 * np.eye(3), -0.5, atol=1e-12)


def test_a_filter_that_is_the_median_is_returned_exactly(key):
    filters = jax.random.normal(key, (6, 4)).at[3].set(0.1)
    filters = jnp.concatenate([filters, 0.2 - filters])  # the filters are symmetric about filter 3
    np.testing.assert_array_equal(geometric_median(filters), filters[3])
    assert fermat(filters)[3] == 0


def test_the_median_of_a_symmetric_set_is_its_centre(key):
    half = np.asarray(jax.random.t(key, 1.5, (6, 4)))
    filters = jnp.asarray(np.concatenate([half, -half]))
    np.testing.assert_allclose(geometric_median(filters), 0, atol=1e-13)


@given(st.integers(0, 99), st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_the_median_moves_with_the_filters(seed, scale):
    keys = jax.random.split(jax.random.key(seed), 3)
    filters = np.asarray(jax.random.normal(keys[0], (12, 4)))
    rotation, _ = np.linalg.qr(jax.random.normal(keys[1], (4, 4)))
    shift = 10 * np.asarray(jax.random.normal(keys[2], (1, 4)))
    transformed = geometric_median(jnp.asarray(scale * filters @ rotation + shift))
    expected = scale * np.asarray(geometric_median(jnp.asarray(filters))) @ rotation + shift[0]
    np.testing.assert_allclose(transformed, expected, atol=1e-12 * (scale + 100))


def test_a_distant_mean_costs_only_the_digits_it_takes(key):
    filters = jax.random.normal(key, (12, 4), jnp.float32) + 1e4
    np.testing.assert_allclose(
        geometric_median(filters), geometric_median(filters.astype(float)), atol=2e-3
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_scores_are_those_of_a_loop(dtype, key):
    filters = jax.random.normal(key, (12, 4)).astype(dtype)
    v = np.asarray(filters, float)
    expected = {
        "l1": [sum(abs(row)) for row in v],
        "l2": [sum(row**2) ** 0.5 for row in v],
        "fermat": [
            sum((row - np.asarray(geometric_median(jnp.asarray(v)))) ** 2) ** 0.5 for row in v
        ],
        "gm": [sum(sum((row - other) ** 2) ** 0.5 for other in v) for row in v],
    }
    for name, criterion in CRITERIA.items():
        found = criterion(filters)
        assert found.dtype == np.promote_types(dtype, jnp.float32)
        eps = float(jnp.finfo(found.dtype).eps)
        np.testing.assert_allclose(found, expected[name], rtol=8 * eps)


def test_float32_distances_survive_clusters_far_from_the_origin(key):
    centres = jnp.repeat(jnp.array([0.0, 1e3]), 8)[:, None]
    filters = (1e3 + centres + 0.01 * jax.random.normal(key, (16, 30))).astype(jnp.float32)
    for sample in (filters, filters[:8]):
        np.testing.assert_allclose(gm(sample), gm(sample.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("distance", 10.0 ** -np.arange(0, 6, 0.5))
def test_near_filters_keep_their_digits_in_float32(distance, key):
    far, near = jax.random.normal(key, (2, 8, 20))
    filters = (far[:1] + distance * near).at[0].set(-far[1]).astype(jnp.float32)
    expected = gm(filters.astype(float))
    np.testing.assert_allclose(gm(filters), expected, rtol=64 * 2.0**-23)


def test_only_l1_depends_on_the_axes(key):
    filters = jax.random.normal(key, (12, 4))
    rotation, _ = jnp.linalg.qr(jax.random.normal(key, (4, 4)))
    for criterion in (l2_norm, fermat, gm):
        np.testing.assert_allclose(criterion(filters @ rotation), criterion(filters), rtol=1e-12)
    assert jnp.abs(l1_norm(filters @ rotation) - l1_norm(filters)).max() > 0.1


@pytest.mark.parametrize("criterion", CRITERIA.values())
@several_keys
def test_criteria_have_their_gradients(criterion, key):
    filters = jax.random.normal(key, (4, 2))
    check_grads(jax.jit(criterion), (filters,), order=1, modes=("rev",))


def test_the_median_has_its_second_derivative(key):
    filters, direction = jax.random.normal(key, (2, 4, 2))

    def median(t):
        return geometric_median(filters + t * direction).sum()

    h = 1e-4
    at = jax.jit(jax.vmap(median))(jnp.array([-h, 0.0, h]))
    second = jax.jit(jax.jacfwd(jax.jacfwd(median)))(0.0)
    np.testing.assert_allclose(second, (at[0] - 2 * at[1] + at[2]) / h**2, rtol=1e-5)


@pytest.mark.parametrize(
    ("points", "weights"),
    [
        ([[0, 0], [4, 0], [1, 1], [1, 5]], [0, 0, 1, 0]),
        ([[0, 0], [1, 1], [5, 5], [2, 2]], [0, 0.5, 0, 0.5]),
    ],
)
def test_a_median_on_filters_moves_with_those(points, weights):
    found = jacobian(jnp.array(points, float))
    expected = np.einsum("ik,j->ijk", np.eye(2), weights)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("criterion", CRITERIA.values())
def test_gradients_are_finite_at_singular_points(criterion):
    gradient = jax.jit(jax.grad(lambda filters: criterion(filters).sum()))
    samples = [
        [[0, 0], [0, 0], [0, 0], [0, 0]],
        [[0, 0], [1, 1], [1, 1], [5, 5]],
        [[1, 1], [1, 1], [5, 3], [2, 9]],
        [[0, 0], [4, 0], [1, 1], [1, 5]],
    ]
    for points in samples:
        assert jnp.isfinite(gradient(jnp.array(points, float))).all()


@pytest.mark.parametrize("criterion", CRITERIA.values())
def test_layers_can_be_batched(criterion, key):
    drawn = jax.random.normal(key, (2, 4, 2))
    on_a_line = jnp.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    inside = jnp.array([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0], [1.0, 5.0]])
    layers = jnp.concatenate([drawn, jnp.stack([on_a_line, inside, jnp.zeros((4, 2))])])
    expected = np.stack([criterion(filters) for filters in layers])
    np.testing.assert_allclose(jax.jit(jax.vmap(criterion))(layers), expected, atol=1e-13)


@pytest.mark.parametrize("shape", [(16, 27), slow((64, 27)), (64, 144)])
def test_float64_fermat_scores_are_those_of_a_loop_of_weiszfeld(shape):
    filters = np.random.default_rng(0).standard_t(4, shape)
    x = filters.mean(0)
    for _ in range(300):
        away = np.linalg.norm(filters - x, axis=1)
        x = (filters / away[:, None]).sum(0) / (1 / away).sum()
    expected = np.linalg.norm(filters - x, axis=1)
    np.testing.assert_allclose(fermat(jnp.asarray(filters)), expected, rtol=1e-9)


def hard_layers():
    """Layers for which a plain Gram product loses digits, and the easy layer `gaussian`."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(96, 144))
    dead = np.where(np.arange(96)[:, None] < 40, 1e-9 * drawn, drawn)
    return {
        "gaussian": drawn,
        "offset": drawn + 30,
        "near duplicates": drawn[np.arange(96) // 2] + 1e-4 * rng.normal(size=(96, 144)),
        "dead": dead,
        "scales": drawn * np.logspace(0, 3, 96)[:, None],
        "at the median": np.concatenate([drawn[:47], -drawn[:47], np.zeros((2, 144))]),
        "duplicates": np.repeat(drawn[:4], 24, 0),
    }


@pytest.mark.parametrize("name", hard_layers())
def test_float32_scores_are_within_1e_5_of_float64(name):
    filters = jnp.asarray(hard_layers()[name], jnp.float32)
    single, double = (scores(f) for f in (filters, filters.astype(float)))
    for criterion, expected in double.items():
        # `rounding` is needed for the Fermat score of the median itself, which is 0.
        rounding = 1e-5 * float(expected.mean())
        np.testing.assert_allclose(single[criterion], expected, rtol=1e-5, atol=rounding)


def test_a_network_is_scored_in_one_call(key):
    layers = dict(zip("ab", jax.random.normal(key, (2, 12, 4)), strict=True))
    found = jax.jit(partial(jax.tree.map, scores))(layers)
    for layer, filters in layers.items():
        for name, expected in scores(filters).items():
            np.testing.assert_allclose(found[layer][name], expected, rtol=1e-13)


def test_the_gap_is_zero_at_the_median_and_bounds_it_elsewhere(key):
    filters = jax.random.normal(key, (12, 4))
    x = geometric_median(filters)
    assert optimality_gap(x, filters) < 1e-14
    minimum = np.linalg.norm(np.asarray(x) - np.asarray(filters), axis=1).sum()
    for step in (1e-3, 0.1, 1.0, 10.0):
        total = np.linalg.norm(np.asarray(x) + step - np.asarray(filters), axis=1).sum()
        gap = optimality_gap(x + step, filters)
        assert 1 - minimum / total <= gap <= 1
    assert gap > 0.5


@pytest.mark.parametrize(
    "points", [[[0, 0], [4, 0], [1, 1], [1, 5]], [[0, 0], [1, 1], [2, 2], [5, 5]], [[3, 3]] * 4]
)
def test_the_gap_is_zero_at_a_median_on_filters(points):
    filters = jnp.array(points, float)
    assert optimality_gap(geometric_median(filters), filters) < 1e-14


def test_a_filter_that_is_not_the_median_has_a_gap():
    filters = jnp.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
    best, total = 4 * 8**0.5, 8 + 32**0.5
    assert 1 - best / total <= optimality_gap(filters[0], filters) <= 1


def test_repr_scores_are_the_summed_cosines_and_zero_filters_have_none(key):
    filters = np.array(jax.random.normal(key, (6, 4)))
    filters[2] = 0
    unit = filters / np.where(np.arange(6) == 2, 1, np.linalg.norm(filters, axis=1))[:, None]
    expected = [sum(abs(u @ v) for k, v in enumerate(unit) if k != j) for j, u in enumerate(unit)]
    np.testing.assert_allclose(repr_score(jnp.asarray(filters)), expected, atol=1e-14)
    gradient = jax.jit(jax.grad(lambda f: repr_score(f).sum()))
    assert np.isfinite(gradient(jnp.asarray(filters))).all()


def test_scores_of_gaussian_filters_flatten_with_the_dimension_but_reprs_do_not(key):
    n, dims, layers = 64, 144, 60
    drawn = jax.random.normal(key, (layers, n, dims))
    found = jax.jit(jax.vmap(lambda v: scores(v) | {"repr": repr_score(v)}))(drawn)
    expected = {  # for each criterion: the squared coefficient of variation of the scores
        "l1": (np.pi / 2 - 1) / dims,
        "l2": 1 / (2 * dims),
        "fermat": (1 + 2 / n) / (2 * dims),
        "gm": 1 / (8 * dims),
        "repr": (np.pi / 2 - 1) / (n - 1),
    }
    for name, square in expected.items():
        cv2 = np.var(found[name], axis=1, ddof=1) / np.mean(found[name], axis=1) ** 2
        assert abs(cv2.mean() / square - 1) < 4 * cv2.std() / layers**0.5 / square + 0.02


@pytest.mark.parametrize("seed", range(6))
def test_the_gap_of_a_far_point_is_at_least_what_the_median_saves(seed):
    """With S, the sum of distances to all filters, the gap at x is at least 1 − S(median)/S(x)."""
    rng = np.random.default_rng(seed)
    filters = rng.normal(3, 1, (5, 2)) * rng.lognormal(0, 2, (5, 1))
    x = filters[0] + rng.normal(0, 0.5, 2)

    def total(point):
        return np.linalg.norm(point - filters, axis=1).sum()

    best = total(np.asarray(geometric_median(filters)))
    gap = float(optimality_gap(x, filters))
    assert 1 - best / total(x) <= gap + 1e-12 <= 1 + 1e-12
    directions = (x - filters) / np.linalg.norm(x - filters, axis=1, keepdims=True)
    y = directions - directions.mean(0)
    y = y / max(1, np.linalg.norm(y, axis=1).max())
    assert gap == pytest.approx(1 - (y * (x - filters)).sum() / total(x), abs=1e-12)


def test_filters_at_the_point_balance_the_others_together():
    """The sum of the distances to the points `others` has a gradient of length 1.5 at x.

    Two filters at x can balance the gradient, but a single filter at x cannot.
    """
    others = -3 * jnp.array([[0.75, 0.4375**0.5], [0.75, -(0.4375**0.5)]])
    x = jnp.zeros(2)
    assert optimality_gap(x, jnp.concatenate([jnp.zeros((2, 2)), others])) < 1e-12
    assert optimality_gap(x, jnp.concatenate([jnp.zeros((1, 2)), others])) > 0.05
