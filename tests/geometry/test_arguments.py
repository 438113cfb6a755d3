"""Arguments of `geometry`: Python numbers, traced values, and arguments of wrong types."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
import jaxnorm

KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))

# These functions cannot be traced. Each has example arguments; the test traces the first argument.
ON_HOST = {
    geometry.odd_points.cluster_growth: (7,),
    geometry.tree.end_bounds: (5,),
    geometry.odd_points.escape_ratio: (7,),
    geometry.odd_points.escape_step: (1.5,),
    geometry.mean_field.expected_norm_factor: (10,),
    geometry.filters.gaussian_filter_geometry: (9,),
    geometry.networks.hull_vertices: (X,),
    geometry.ranks.mean_rows_bound: (5, 0.1),
    geometry.networks.neuron_per_point: (X,),
    geometry.filters.norm_envelope: (9,),
    geometry.cells.number_of_cells: (6, 3),
    geometry.odd_points.odd_state: (7,),
    geometry.networks.point_initializers: (KEY, X),
    geometry.ranks.rank_tail: (5, 0.1, 150),
    geometry.rank_tail_bound: (5, 3.0, 0.1),
    geometry.odd_points.recentred_angle: (5,),
    geometry.filters.welch_bound: (5, 3),
}
INSTEAD = {
    geometry.tree.end_bounds: "`limits`",
    geometry.odd_points.escape_ratio: "`mean_field_step`",
    geometry.odd_points.odd_state: "`mean_field_step`",
    geometry.odd_points.recentred_angle: "`cosine_step`",
}
on_host = pytest.mark.parametrize("function", ON_HOST, ids=lambda f: f.__name__)


def call(function, first):
    return function(first, *ON_HOST[function][1:])


@on_host
def test_what_runs_on_the_host_refuses_traced_values_in_one_sentence(function):
    call(function, ON_HOST[function][0])
    with pytest.raises(TypeError, match=f"{function.__name__} runs on the host") as error:
        jax.jit(lambda first: call(function, first))(ON_HOST[function][0])
    assert INSTEAD.get(function, "outside jit") in str(error.value)


@on_host
def test_what_runs_on_the_host_says_so(function):
    module = __import__(function.__module__, fromlist=["_"])
    assert "host" in (function.__doc__ or "") + (module.__doc__ or "")


def test_what_runs_on_the_host_is_a_constant_within_a_traced_function():
    found = jax.jit(
        lambda x: x * geometry.mean_field.rms_angle() * geometry.odd_points.recentred_angle(5)
    )(1.0)
    np.testing.assert_allclose(
        found, geometry.mean_field.rms_angle() * geometry.odd_points.recentred_angle(5)
    )


@pytest.mark.parametrize("number", [0, 1, 0.5, np.float64(0.5)])
def test_python_numbers_are_arrays_of_one_number(number):
    one = jnp.asarray(number, float)
    assert geometry.mean_field.cosine_step(number) == geometry.mean_field.cosine_step(one)
    np.testing.assert_equal(
        np.asarray(geometry.mean_field.rms_cosine_step(number / 2)),
        np.asarray(geometry.mean_field.rms_cosine_step(one / 2)),
    )
    for found, expected in zip(
        geometry.tree.limits(5, number), geometry.tree.limits(5, one), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(
        geometry.odd_points.expected_entries(X, width=3, gain=number),
        geometry.odd_points.expected_entries(X, width=3, gain=one),
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "numbers"),
    [(geometry.odd_points.recentred_angle, (5,)), (geometry.rank_tail_bound, (5, 3.0, 0.1))],
)
def test_arrays_of_one_number_are_python_numbers(function, numbers):
    assert math.isclose(function(*map(jnp.asarray, numbers)), function(*numbers))


NAME: Any = "batch_norm"  # the tests pass this text instead of a function


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (geometry.gram, ([[1.0, 2.0]],), TypeError, "x must be an array; got list"),
        (geometry.angles, (1.0,), TypeError, "x must be an array; got float"),
        (geometry.odd_point, (2,), TypeError, "gram must be an array; got int"),
        (
            partial(geometry.tree.neurons, depth=2),
            (3.0,),
            TypeError,
            "x must be an array; got float",
        ),
        (geometry.tree_gram, ([1.0], 2), TypeError, "x must be an array; got list"),
        (
            partial(geometry.random_network, depth=2, width=2, normalization=NAME),
            (jax.random.key(0), X),
            TypeError,
            "normalization must be a function, such as .*; got 'batch_norm'",
        ),
        (
            geometry.claims.about,
            ("bn-decomposed", "Theorem 1"),
            TypeError,
            "claims must be a list of `Claim`; got the text 'bn-decomposed'",
        ),
        (geometry.tree.step, (X[0],), ValueError, r"\(samples, features\); got \(3,\)"),
        (geometry.tree.depth_bound, (X,), ValueError, r"\(samples,\); got \(4, 3\)"),
        (geometry.tree.limit_ratio, (X,), ValueError, r"\(samples,\); got \(4, 3\)"),
        (
            geometry.ranks.full_rank_probability,
            (X[:, :2], X),
            ValueError,
            r"neurons .*; got \(4, 3\)",
        ),
    ],
)
def test_other_arguments_are_refused_in_one_sentence(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(*arguments)


GRAM_FUNCTIONS = [
    *(geometry.arccosine_kernel, geometry.mean_field_step, geometry.isometry_gap),
    *(geometry.orthogonality_gap, geometry.odd_point, geometry.is_odd, geometry.is_invariant),
    *(geometry.mean_field.rescale_step, geometry.mean_field.rescale_rms_step),
    geometry.mean_field.standardize_step,
]


# The tests of `rescale_step` and `rescale_rms_step` are slow tests, because `_unit_trace` checks
# the matrix for both of them and for `standardize_step`.
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(f, marks=[pytest.mark.slow] if f.__name__.startswith("rescale") else [])
        for f in GRAM_FUNCTIONS
    ],
    ids=lambda f: f.__name__,
)
def test_functions_of_a_gram_matrix_say_so_and_refuse_a_square_batch(function):
    assert "Gram matrix" in function.__doc__.partition("\n\n")[0]
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)))
    with pytest.raises(ValueError, match=r"gram must be symmetric; .* pass its Gram matrix"):
        function(batch)
    function(geometry.gram(batch.astype(jnp.bfloat16)))


HUGE = 10**400


@pytest.mark.parametrize("n", [8.5, math.nan, math.inf, HUGE])
@pytest.mark.parametrize(
    "function",
    [
        *(geometry.odd_points.odd_state, geometry.odd_points.escape_ratio),
        *(geometry.odd_points.cluster_growth, geometry.mean_field.expected_norm_factor),
        *(geometry.tree.end_bounds, geometry.filters.norm_envelope),
        *(geometry.filters.gaussian_filter_geometry,),
        partial(geometry.filters.welch_bound, dims=3),
        partial(geometry.cells.number_of_cells, 6),
        partial(geometry.ranks.mean_rows_bound, gamma=0.1),
        partial(geometry.ranks.rank_tail, 3, 0.1),
        partial(geometry.rank_tail_bound, alpha=2.0, gamma=0.1),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_counts_that_are_no_whole_numbers_are_refused_in_one_sentence(function, n):
    shown = "more" if n == HUGE else n
    with pytest.raises(ValueError, match=rf"must be a whole number of at most .*; got {shown}$"):
        function(n)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "x", "message"),
    [
        (geometry.gram, np.ones((0, 3)), r"x must have shape \(samples, features\); got \(0, 3\)"),
        (geometry.gram, np.ones((3, 0)), r"x must have shape \(samples, features\); got \(3, 0\)"),
        (
            geometry.arccosine_kernel,
            np.ones((0, 0)),
            r"gram must have shape \(samples, samples\); got \(0, 0\)",
        ),
        (geometry.arccosine_kernel, np.array([[2.0, 0.5], [0.55, 1.0]]), "gram must be symmetric"),
        (
            geometry.arccosine_kernel,
            np.diag([3.0, -0.25]),
            r"gram must have no negative square on its diagonal; got -0\.25$",
        ),
        (geometry.tree.depth_bound, np.array([1.0, np.inf, 2, 3]), "x must be finite; 1 of 4"),
    ],
)
def test_arrays_of_other_shapes_or_elements_are_refused(function, x, message):
    with pytest.raises(ValueError, match=message):
        function(jnp.asarray(x))


POINTS = np.random.default_rng(0).normal(size=(5, 3))
GRAM, INVARIANT = POINTS @ POINTS.T, np.array([[1.0, 0], [0, 0.5], [0, 0.5]])
# The results of these functions do not depend on the scale of the array.
SCALE_FREE = {
    "unit_vector": (jaxnorm.unit_vector, POINTS),
    "angles": (geometry.angles, POINTS),
    "numerical_rank": (geometry.numerical_rank, POINTS),
    "effective_rank": (geometry.effective_rank, POINTS),
    "stable_rank": (geometry.stable_rank, POINTS),
    "rows_needed": (lambda x: geometry.ranks.rows_needed(jax.random.key(0), x), POINTS),
    "next_layer": (lambda x: geometry.odd_points.next_layer(x).gram, POINTS),
    "random_network": (
        lambda x: geometry.random_network(jax.random.key(0), x, depth=2, width=8).statistics,
        POINTS,
    ),
    "cell_volumes_3d": (geometry.cells.cell_volumes_3d, POINTS),
    "orthogonality_gap": (geometry.orthogonality_gap, GRAM),
    "is_invariant": (geometry.odd_points.is_invariant, INVARIANT @ INVARIANT.T),
    "odd_point": (geometry.odd_point, GRAM),
    "rescale_gram": (geometry.mean_field.rescale_gram, GRAM),
    "rms_norm_gram": (geometry.mean_field.rms_norm_gram, GRAM),
    "rescale_step": (geometry.mean_field.rescale_step, GRAM),
    "rescale_rms_step": (geometry.mean_field.rescale_rms_step, GRAM),
    "standardize_step": (geometry.mean_field.standardize_step, GRAM),
}


@pytest.mark.parametrize("unit", [1e-30, 1.5e38, 3e38])
@pytest.mark.parametrize("name", SCALE_FREE)
def test_a_result_without_a_unit_is_the_same_near_the_largest_float(name, unit):
    function, array = SCALE_FREE[name]
    whole = np.float32(array / np.abs(array).max())
    expected, found = (function(jnp.asarray(whole * np.float32(scale))) for scale in (1, unit))
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    jax.tree.map(close, found, expected)


def test_a_gram_matrix_may_be_of_a_zero_sample():
    kernel = geometry.arccosine_kernel(jnp.diag(jnp.array([2.0, 0.0])))
    np.testing.assert_allclose(kernel, np.diag([2.0, 0.0]), atol=1e-6)


def test_rounding_does_not_make_a_gram_matrix_asymmetric():
    """An asymmetry of up to 1 % of the largest element is accepted."""
    rounded = jnp.array([[2.0, 0.5], [0.515, 1.0]])
    np.testing.assert_array_equal(geometry.mean_field.rescale_gram(rounded), rounded / 1.5)


FRACTION: Any = 2.5
THREE: Any = "3"
SEED: Any = 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: geometry.tree.limits(5, -1.0), ValueError, "r must not be negative; got -1.0"),
        (lambda: geometry.tree.limits(5, HUGE), ValueError, "r must fit a float"),
        (
            lambda: geometry.odd_points.expected_entries(X, width=3, gain=-1.0),
            ValueError,
            "gain must not be negative; got -1.0",
        ),
        (
            lambda: geometry.odd_points.expected_entries(X, width=FRACTION),
            TypeError,
            "width must be an int; got 2.5",
        ),
        (
            lambda: geometry.odd_points.expected_entries(X, width=3, gain=HUGE),
            ValueError,
            "gain must fit a float",
        ),
        (lambda: geometry.mean_field.cosine_step(HUGE), ValueError, "cosine must fit a float"),
        (lambda: geometry.mean_field.rms_cosine_step(HUGE), ValueError, "cosine must fit a float"),
        (lambda: geometry.odd_points.escape_step(HUGE), ValueError, "norm_ratio must be finite"),
        (lambda: geometry.rank_tail_bound(5, HUGE, 0.1), ValueError, "alpha must be above 1"),
        (
            lambda: geometry.ranks.rows_needed(KEY, X, max_rows=HUGE),
            ValueError,
            "max_rows must be below",
        ),
        (
            lambda: geometry.random_network(KEY, X, depth=THREE, width=2),
            TypeError,
            "depth must be an int; got '3'",
        ),
        (
            lambda: geometry.random_network(KEY, X, depth=HUGE, width=2),
            ValueError,
            r"depth and width must be below 2\*\*31",
        ),
        (
            lambda: geometry.random_network(SEED, X, depth=2, width=2),
            TypeError,
            "key must be one random key, such as jax.random.key.0.; got int",
        ),
        (
            lambda: geometry.cells.sampled_cells(SEED, X, samples=9),
            TypeError,
            "key must be one random key, such as jax.random.key.0.; got int",
        ),
        (
            lambda: geometry.filters.gaussian_filter_geometry(9, std=math.inf),
            ValueError,
            "std must be finite; got inf",
        ),
    ],
)
def test_wrong_numbers_get_one_sentence(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.usefixtures("unchecked")
def test_python_integers_of_any_size_are_their_floats():
    large = 2**40
    assert geometry.tree.limits(large, 1.0).norm_ratios[0] < 1e-5
    found = geometry.filters.gaussian_filter_geometry(9, std=large)
    np.testing.assert_allclose(
        found.norm_mean, large * geometry.filters.gaussian_filter_geometry(9).norm_mean
    )


SPOILED = X.at[1, 1].set(math.nan)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: geometry.ranks.full_rank_probability(x[:3, :2], X[:2, :2]),
        lambda x: geometry.cells.sampled_cells(KEY, x, samples=100).gamma,
        lambda x: geometry.cells.sampled_cells(KEY, x, samples=100).volumes,
        lambda x: geometry.random_network(KEY, x, depth=2, width=3).x,
        lambda x: geometry.effective_rank(x),
        lambda x: geometry.tree.depth_bound(x[:, 1]),
        lambda x: geometry.mean_field.rescale_rms_step(geometry.gram(x)),
    ],
)
def test_a_traced_nan_is_never_a_number(call):
    assert np.isfinite(jax.jit(call)(X)).all()
    assert np.isnan(jax.jit(call)(SPOILED)).any()


@pytest.mark.parametrize(
    ("function", "fewest"),
    [
        (geometry.odd_points.odd_point, 3),
        (geometry.odd_points.is_odd, 3),
        (geometry.odd_points.is_invariant, 2),
        (geometry.mean_field.rescale_step, 4),
    ],
)
def test_gram_matrices_of_too_few_samples_are_refused(function, fewest):
    with pytest.raises(ValueError, match=rf"gram must have at least {fewest} samples"):
        function(jnp.eye(fewest - 1))
