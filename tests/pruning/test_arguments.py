"""Wrong arguments raise an error of one sentence, but numbers at the limits of a range do not."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning import criteria, gaussian, ranking, schedules, weight_tests
from tests.support.jitted import jitted

OF_FILTERS = {
    "l1_norm": pruning.l1_norm,
    "l2_norm": pruning.l2_norm,
    "fermat": pruning.fermat,
    "gm": pruning.gm,
    "repr_score": criteria.repr_score,
    "scores": criteria.scores,
    "geometric_median": pruning.geometric_median,
    "filter_stds": weight_tests.filter_stds,
    "covariance": weight_tests.covariance,
    "covariance_report": weight_tests.covariance_report,
    "std_homogeneity": pruning.std_homogeneity,
}
OF_WEIGHTS = {
    "ks_normal": pruning.ks_normal,
    "ks_bound": weight_tests.ks_bound,
    "symmetry": pruning.weight_tests.symmetry,
    "holm": weight_tests.holm,
    "mean_equivalence": lambda x: pruning.mean_equivalence(x, margin=0.1),
    "lilliefors": lambda x: pruning.lilliefors(jax.random.key(0), x, samples=9),
}
OF_SCORES = {
    "spearman": pruning.spearman,
    "kendall": pruning.kendall,
    "overlap": lambda a, b: pruning.overlap(a, b, ratio=0.5),
    "permutation_p_value": lambda a, b: ranking.permutation_p_value(jax.random.key(0), a, b),
}
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OF_FILTERS)
@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (6, 0), (3, 3, 2, 5)])
def test_filters_must_be_a_matrix(name, shape):
    with pytest.raises(ValueError, match=r"^filters must .*; got shape \("):
        OF_FILTERS[name](jnp.zeros(shape))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [*OF_FILTERS, *OF_WEIGHTS])
@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_weights_must_be_floats(name, dtype):
    with pytest.raises(TypeError, match=r"^\w+ must be of a floating dtype; got"):
        (OF_FILTERS | OF_WEIGHTS)[name](jnp.ones((3, 4), dtype))


@pytest.mark.usefixtures("unchecked")
def test_a_list_is_no_array():
    with pytest.raises(TypeError, match="filters must be an array; got list"):
        OF_FILTERS["l1_norm"]([[1.0, 2.0]])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(4,), (3, 3, 2, 0)])
def test_a_kernel_has_filters(shape):
    with pytest.raises(ValueError, match=r"kernel must have .*; got"):
        pruning.filter_matrix(jnp.ones(shape))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_must_be_vectors_of_one_length(name):
    with pytest.raises(ValueError, match=r"a and b must be vectors of the same length; got shape"):
        OF_SCORES[name](jnp.ones(4), jnp.ones(5))
    with pytest.raises(TypeError, match="a must be real; got complex"):
        OF_SCORES[name](jnp.ones(4, "complex64"), jnp.ones(4))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [pruning.order, lambda x: ranking.lowest(x, ratio=0.5)])
def test_scores_must_be_one_real_vector(function):
    with pytest.raises(ValueError, match=r"scores must be a vector; got shape \(2, 2\)"):
        function(jnp.ones((2, 2)))
    with pytest.raises(TypeError, match="scores must be real; got complex"):
        function(jnp.ones(2, "complex64"))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (pruning.gaussian.half_normal_moment, (1.0, 1.0)),
        (pruning.gaussian.chi_moment, (1.0, 9.0, 1.0)),
        (gaussian.chi_variance, (1.0, 9.0)),
        (lambda *args: pruning.gaussian.amoroso_moment(*args, order=2), (1.0, 1.0, 1.0, 1.0)),
        (gaussian.expected_distance, (1.0, 1.0, 9.0)),
        (pruning.l1_l2_correlation, (9.0,)),
        (lambda n, d: pruning.expected_spearman(n, d, ("l1", "gm")), (9.0, 9.0)),
    ],
)
def test_parameters_must_be_real(function, arguments):
    with pytest.raises(TypeError, match=r"^\w+ must be real; got complex"):
        function(*(jnp.asarray(x, "complex64") for x in arguments))


@pytest.mark.parametrize("num_filters", [0, 1, -3])
def test_a_ranking_needs_two_filters(num_filters):
    with pytest.raises(ValueError, match=f"num_filters must be at least 2; got {num_filters}"):
        pruning.expected_spearman(num_filters, 9.0, ("l1", "l2"))


def test_a_layer_needs_dims():
    with pytest.raises(ValueError, match="dims must be at least 1; got 0"):
        gaussian.expected_overlap(9, 0, ("l1", "l2"), ratio=0.5)


@pytest.mark.usefixtures("unchecked")
def test_a_number_of_filters_is_finite():
    with pytest.raises(ValueError, match="num_filters must be at least 1, and finite; got inf"):
        ranking.chance_overlap(float("inf"), ratio=0.5)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["num_filters", "dims", "samples"])
def test_sizes_of_gaussian_layers_are_whole(name):
    sizes = {"num_filters": 8, "dims": 9, "samples": 2, name: 9.5}
    with pytest.raises(TypeError, match=f"^{name} must be an int; got 9.5"):
        ranking.gaussian_similarity(jax.random.key(0), ratio=0.5, **sizes)  # pyright: ignore[reportArgumentType]


@cache
def with_jacobian(name):
    return jax.jit(lambda x: (OF_FILTERS[name](x), jax.jacrev(OF_FILTERS[name])(x)))


@pytest.mark.parametrize("name", ["l2_norm", "fermat", "gm", "geometric_median"])
@pytest.mark.parametrize("scale", [1e-25, 1e19])
def test_no_square_leaves_the_range_of_float32(name, scale):
    x = np.random.default_rng(0).normal(size=(6, 4))
    value, gradient = with_jacobian(name)(jnp.asarray(scale * x, jnp.float32))
    expected, expected_gradient = with_jacobian(name)(jnp.asarray(x))
    np.testing.assert_allclose(value, scale * np.asarray(expected), rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4)


@pytest.mark.parametrize("test", [pruning.ks_normal, weight_tests.ks_bound])
def test_the_distance_of_tiny_weights_has_its_gradient(test):
    @jax.jit
    @jax.grad
    def gradient(x):
        return jnp.ravel(jnp.stack(test(x)) if test is pruning.ks_normal else test(x))[0]

    x = jnp.asarray(np.random.default_rng(0).normal(size=50))
    expected = 1e20 * gradient(x)
    found = gradient(jnp.asarray(1e-20 * x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e15)


@pytest.mark.parametrize("name", ["l2_norm", "fermat", "gm", "geometric_median"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_never_look_small(name, bad):
    x = X.copy()
    x[2, 1] = bad
    found = jitted(OF_FILTERS[name])(jnp.asarray(x))
    assert not np.isfinite(np.asarray(found)[2 if name == "l2_norm" else slice(None)]).any()


def test_a_statistic_that_is_nan_has_no_p_value(key):
    x = jnp.asarray(np.where(np.arange(20) == 3, np.nan, 1.0))
    assert np.isnan(jitted(pruning.lilliefors)(key, x, samples=19).p_value)
    assert np.isnan(jitted(pruning.weight_tests.anderson_darling)(key, x, samples=19).p_value)


def test_the_spread_of_a_constant_filter_has_a_gradient():
    x = jnp.asarray(np.where(np.arange(6)[:, None] == 2, 3.0, X))
    gradient = jax.jit(jax.grad(lambda x: weight_tests.filter_stds(x).sum()))(x)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[2] == 0).all()


OF_ANY_UNIT = {
    "repr_score": criteria.repr_score,
    "std_homogeneity": pruning.std_homogeneity,
    "std_equivalence": lambda x: pruning.weight_tests.std_equivalence(x, margin=0.5),
    "mean_equivalence": lambda x: pruning.mean_equivalence(x, margin=0.5),
    "covariance_report": weight_tests.covariance_report,
    "lilliefors": lambda x: pruning.lilliefors(jax.random.key(0), x, samples=9),
    "anderson_darling": lambda x: pruning.weight_tests.anderson_darling(
        jax.random.key(0), x, samples=9
    ),
    "optimality_gap": lambda x: criteria.optimality_gap(x[0], x),
}


@pytest.mark.parametrize("name", OF_ANY_UNIT)
@pytest.mark.parametrize("scale", [1e-25, 1e19])
def test_what_has_no_unit_is_the_same_in_every_unit(name, scale):
    function = jitted(OF_ANY_UNIT[name])
    expected, found = (function(jnp.asarray(s * X, jnp.float32)) for s in (1, scale))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), found, expected)


def test_standard_deviations_keep_their_range():
    for scale in (1e-25, 1e19):
        found = jitted(weight_tests.filter_stds)(jnp.asarray(scale * X, jnp.float32))
        np.testing.assert_allclose(found, scale * X.std(1, ddof=1), rtol=1e-5)


def test_a_tiny_filter_has_a_finite_gradient_of_its_angles():
    x = jnp.asarray(np.where(np.arange(6)[:, None] == 2, 1e-25 * X, X), jnp.float32)
    assert np.isfinite(jax.jit(jax.jacrev(criteria.repr_score))(x)).all()


def test_nan_is_never_the_best(key):
    x = jnp.asarray(X).at[2, 1].set(jnp.nan)
    assert jnp.isnan(jitted(criteria.optimality_gap)(x[0], x))
    assert jnp.isnan(pruning.overlap(x[:, 1], x[:, 0], ratio=0.5))
    assert jnp.isnan(jax.jit(lambda a, b: pruning.overlap(a, b, ratio=0.5))(x[:, 0], x[:, 1]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: criteria.optimality_gap(jnp.ones(()), jnp.ones((3, 2))), "x must have the shape"),
        (lambda: criteria.optimality_gap(jnp.ones(3), jnp.ones((3, 2))), "x must have the shape"),
        (lambda: ranking.spearman_z_score(jnp.ones(()), jnp.ones(())), "gaussian must hold"),
        (lambda: ranking.spearman_z_score(jnp.ones(3), jnp.ones((5, 2))), "gaussian must hold"),
        (lambda: weight_tests.holm(jnp.ones((2, 2))), "p_values must be a vector"),
        (lambda: pruning.ks_normal(jnp.asarray(X), scale=jnp.ones(2)), "scale must be one number"),
        (
            lambda: pruning.mean_equivalence(jnp.asarray(X), margin=jnp.ones(0)),
            "margin must be one number",
        ),
        (
            lambda: pruning.weight_tests.std_equivalence(jnp.asarray(X), margin=10**400),
            "margin must fit a float",
        ),
        (
            lambda: pruning.weight_tests.std_equivalence(jnp.asarray(X), margin=jnp.array([-1.0])),
            r"margin must be positive and finite; got -1\.0$",
        ),
        (lambda: pruning.gaussian.chi_moment(10**400, 2, 1), "std must fit a float"),
        (lambda: gaussian.chi_variance(1.0, -1), "dims must be at least 0"),
        (lambda: ranking.chance_overlap(10**400, ratio=0.5), "num_filters must fit a float"),
        (lambda: schedules.iterative(0.5, steps=10**400), "steps must fit a float"),
        (lambda: schedules.iterative(10**400, steps=2), r"target must lie in \(0, 1\)"),
        (lambda: schedules.cubic(10**400, 0.5), "target must fit a float"),
        (lambda: schedules.geometric(0.5, 10**400), "t must fit a float"),
        (lambda: schedules.linear(10**400, 0.5), "target must fit a float"),
        (
            lambda: ranking.gaussian_similarity(
                jax.random.key(0), num_filters=10**400, dims=9, ratio=0.5
            ),
            "num_filters must fit a float",
        ),
        (
            lambda: ranking.gaussian_similarity(
                jax.random.key(0), num_filters=8, dims=9, ratio=0.5, samples=-1
            ),
            "samples must be at least 1",
        ),
        (
            lambda: ranking.gaussian_similarity(
                jax.random.key(0), num_filters=1, dims=9, ratio=0.5
            ),
            "num_filters must be at least 2; got 1",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_a_traced_number_is_nan_below_its_minimum_and_not_at_it():
    moment = jax.jit(lambda std, dims: gaussian.chi_moment(std, dims, 1))
    assert moment(0.0, 3.0) == 0
    assert jnp.isnan(moment(-1e-3, 3.0))
    p_value = jax.jit(lambda margin: weight_tests.std_equivalence(jnp.asarray(X), margin=margin)[1])
    assert jnp.isfinite(p_value(0.5))
    assert jnp.isnan(p_value(0.0))


@pytest.mark.usefixtures("unchecked")
def test_a_parameter_must_be_a_number():
    with pytest.raises(TypeError, match="std must be an array; got str"):
        pruning.gaussian.chi_moment("1", 2, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="order must be a whole number"):
        pruning.gaussian.amoroso_moment(1.0, 1.0, 1.0, 1.0, order=float("inf"))
