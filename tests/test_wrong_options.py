"""A wrong option or argument raises the same error of one sentence in all functions."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

import inspect
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxnorm
import pruning
from geometry import cells, claims, filters, mean_field, networks, odd_points, ranks, sampling, tree
from jaxnorm import shift
from jaxnorm.models import MLP, VGG, CifarResNet
from pruning import channels, criteria, gaussian, ranking, schedules, weight_tests, weights
from tests.support.public_functions import NUMERICAL

pytestmark = pytest.mark.usefixtures("unchecked")

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (8, 4))
STATISTICS = jaxnorm.batch_statistics(X)
MOMENTS = jaxnorm.moments(X)
WEIGHTS = jax.random.normal(KEY, (16, 9))
rngs = partial(nnx.Rngs, 0)
FUNCTIONS = {f: call for f, call in NUMERICAL.items() if "channels" not in f.__module__}
# For an argument that is not an array, `custom_jvp` raises an error of JAX.
REFUSED_BY_JAX = {criteria.fermat, criteria.gm}


def said(use):
    with pytest.raises((TypeError, ValueError)) as raised:
        use()
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 260
    return text


def options(kind):
    """All pairs of a function and one of its options with the annotation `kind`, except `axis`."""
    return [
        pytest.param(f, name, id=f"{f.__name__}-{name}")
        for f in FUNCTIONS
        for name, option in inspect.signature(f).parameters.items()
        if option.annotation is kind and option.kind is option.KEYWORD_ONLY and name != "axis"
    ]


@pytest.mark.parametrize(("function", "name"), options(bool))
@pytest.mark.parametrize("wrong", ["no", None, 0])
def test_a_flag_is_true_or_false(function, name, wrong):
    args, given = FUNCTIONS[function]
    text = said(lambda: function(*args, **given | {name: wrong}))
    assert text == f"{name} must be True or False; got {wrong!r}"


def mlp(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


PARAMS = {"a": np.ones((4, 8)), "b": np.ones((8, 3))}
# functions that have flags, but are not in `NUMERICAL`
WITH_FLAGS = {
    pruning.prune: partial(pruning.prune, mlp, PARAMS, X, ratios=[0.5]),
    pruning.coupled_channels: partial(pruning.coupled_channels, mlp, PARAMS, X),
    channels.fixed_channels: partial(channels.fixed_channels, mlp, PARAMS, X),
    channels.select_globally: partial(channels.select_globally, [X[0]], ratio=0.5),
    channels.select_within: partial(channels.select_within, [X[0]], budget=2, cost=sum),
    pruning.lilliefors: partial(pruning.lilliefors, KEY, X),
    weights.load: partial(weights.load, {"kernel": X}, dense=True),
}


def flags(functions):
    """All pairs of a function and one of its options whose default is a flag."""
    return [
        (function, name)
        for function in functions
        for name, option in inspect.signature(function).parameters.items()
        if type(option.default) is bool
    ]


def test_all_flags_of_pruning_are_tested():
    public = [f for m in (pruning, channels, weights) for f in vars(m).values()]
    functions = {f for f in public if inspect.isfunction(f)} - {*FUNCTIONS}
    assert set(flags(functions)) == set(flags(WITH_FLAGS))


@pytest.mark.parametrize(("function", "name"), flags(WITH_FLAGS))
@pytest.mark.parametrize("wrong", ["no", None, 3])
def test_a_flag_of_pruning_is_true_or_false(function, name, wrong):
    text = said(lambda: WITH_FLAGS[function](**{name: wrong}))
    assert text == f"{name} must be True or False; got {wrong!r}"


CHOICES = {
    "select_layerwise": lambda scores: channels.select_layerwise([scores], ratio=0.5),
    "select_globally": lambda scores: channels.select_globally([scores], ratio=0.5),
    "select_within": lambda scores: channels.select_within([scores], budget=4, cost=sum),
    "prune": lambda scores: (
        pruning.prune(
            mlp, PARAMS, X, ratios=[0.5], fold=False, score=lambda params, groups: [scores]
        ).keep
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_scores_are_real_numbers_in_an_array_or_a_list(choice):
    scores = [3.0, 7.0, 1.0, 5.0, 8.0, 2.0, 4.0, 6.0]
    assert CHOICES[choice](scores)[0].tolist() == [score > 4 for score in scores]
    wrong = {"must be real": np.array(scores) + 0j, "must hold numbers": np.array([None] * 8)}
    for message, array in wrong.items():
        assert message in said(lambda array=array: CHOICES[choice](array))


GROUPS = pruning.coupled_channels(mlp, PARAMS, X)
KEPT = [np.arange(8) < 4]
NORM = jaxnorm.nnx.BatchNorm(4, use_running_average=True, rngs=rngs())
prune_half = partial(pruning.prune, mlp, PARAMS, X, ratios=[0.5], fold=False)
# For each function that a user gives: a call with this function, and what the function must return.
GIVEN = {
    "score": (lambda f: prune_half(score=f), "score must return a list of vectors"),
    "score of a batch": (
        lambda f: channels.mean_scores(PARAMS, GROUPS, score=f, batches=[X]),
        "score must return a list of vectors",
    ),
    "score of sensitivity": (
        lambda f: channels.sensitivity(PARAMS, GROUPS, measure=lambda p: 1.0, score=f),
        "score must return a list of vectors",
    ),
    "measure of widths": (
        lambda f: channels.widths_for(mlp, PARAMS, GROUPS[0], X, widths=[4], measure=f),
        "measure must return one cost for each of 1 programs",
    ),
    "plan": (
        lambda f: channels.merge_channels(mlp, PARAMS, GROUPS, KEPT, inputs=[X], plan=f),
        "plan must return a matrix of shape (8, 4)",
    ),
    "select": (lambda f: prune_half(select=f), "the result of select must be a list of boolean"),
    "refine": (lambda f: prune_half(refine=f), "the result of refine must be a list of boolean"),
    "repair": (lambda f: prune_half(repair=f), "repair must return a tree with the shapes"),
    "fine_tune": (
        lambda f: prune_half(fine_tune=f),
        "fine_tune must return a tree with the shapes",
    ),
    "cost": (
        lambda f: pruning.prune(mlp, PARAMS, X, budget=0.5, cost=f),
        "the result of cost must be a number",
    ),
    "price": (
        lambda f: channels.select_within([abs(X[0])], budget=2, cost=sum, price=f),
        "the result of price must be a number",
    ),
    "criterion": (
        lambda f: channels.channel_scores(PARAMS, GROUPS, criterion=f),
        "criterion must return one number for each of the 8 filters of a",
    ),
    "reduce": (
        lambda f: channels.channel_scores(PARAMS, GROUPS, reduce=f),
        "reduce must return one number for each of 8 channels",
    ),
    "measure": (
        lambda f: channels.sensitivity(PARAMS, GROUPS, measure=f, ratios=[0.5]),
        "the result of measure must be a number",
    ),
    "loss": (
        lambda f: channels.taylor_scores(PARAMS, GROUPS, loss=f, batches=[X]),
        "loss(params, batch) must be one real float",
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_function_that_returns_nothing_is_named(name):
    call, message = GIVEN[name]
    assert said(lambda: call(lambda *arguments, **options: None)).startswith(message)


@pytest.mark.parametrize(("function", "name"), options(int))
@pytest.mark.parametrize("wrong", ["3", None, True])
def test_a_whole_number_is_neither_a_text_nor_a_flag(function, name, wrong):
    args, given = FUNCTIONS[function]
    assert said(lambda: function(*args, **given | {name: wrong})) == (
        f"{name} must be an int; got {wrong!r}"
    )


@pytest.mark.parametrize(
    "function", [f for f in FUNCTIONS if f not in REFUSED_BY_JAX], ids=lambda f: f.__name__
)
def test_a_layer_a_shape_and_complex_numbers_are_no_arrays_of_floats(function):
    args, given = FUNCTIONS[function]
    layer = nnx.Linear(2, 3, rngs=rngs())  # a layer has an attribute dtype
    for i, x in enumerate(args):
        if not hasattr(x, "dtype"):
            continue
        shape = jax.ShapeDtypeStruct(np.shape(x), np.float64)
        for wrong in (layer, shape, np.asarray(x).astype(object), np.asarray(x).astype(complex)):
            call = partial(function, *args[:i], wrong, *args[i + 1 :], **given)
            assert " must " in said(call)


@pytest.mark.parametrize("axis", ["0", None, True, (0, True), 0.0, {0}])
@pytest.mark.parametrize("function", [jaxnorm.recenter, jaxnorm.moments, jaxnorm.unit_vector])
def test_an_axis_is_an_int(function, axis):
    assert said(lambda: function(X, axis=axis)).startswith("axis must be ")


def test_each_axis_is_named_once_and_any_integer_names_it():
    assert said(lambda: jaxnorm.rescale(X, axis=(0, -2))) == (
        "axis must name each axis once; got (0, -2) for shape (8, 4)"
    )
    np.testing.assert_array_equal(jaxnorm.rescale(X, axis=np.int64(1)), jaxnorm.rescale(X, axis=1))


@pytest.mark.parametrize("axis", [(0,), (0, 1), [1]])
@pytest.mark.parametrize(
    "unitize", [partial(jaxnorm.unitize, alpha=0.5), jaxnorm.unit_vector], ids=["unitize", "vector"]
)
def test_a_sample_is_unitized_along_one_axis(unitize, axis):
    assert said(lambda: unitize(X, axis=axis)) == f"axis must be one int; got {axis!r}"


ONE_NUMBER = {
    "eps": lambda: jaxnorm.batch_norm(X, eps=jnp.ones(4)),
    "momentum": lambda: jaxnorm.nnx.BatchNorm(4, momentum=jnp.ones(4), rngs=rngs()),
    "r_max": lambda: jaxnorm.batch_renorm(X, r_max=jnp.full(4, 2.0)),
    "d_max": lambda: jaxnorm.nnx.BatchRenorm(4, d_max=jnp.ones(4), rngs=rngs()),
    "pixels": lambda: jaxnorm.unitized_batch_norm(X, 0.5, pixels=jnp.ones(2)),
    "radius": lambda: shift.clipped_power(X, radius=jnp.ones(4)),
    "distance": lambda: shift.certified_upper_bound(shift.dyt_bounds(0.5, X[0]), X[0]),
    "clip": lambda: shift.emd_critic(KEY, X, X, X, X, clip=jnp.ones(2)),
    "std": lambda: mean_field.kernel_map(jnp.tanh, std=jnp.ones(2)),
    "gain": lambda: odd_points.expected_entries(X, width=3, gain=jnp.ones(2)),
    "alpha": lambda: ranks.rank_tail_bound(5, jnp.array([3.0, 4.0]), 0.1),
    "target_stderr": lambda: sampling.monte_carlo(
        jax.random.normal, KEY, 10, target_stderr=jnp.ones(2)
    ),
    "ratio": lambda: ranking.lowest(X[0], ratio=jnp.array([0.5, 0.5])),
    "target": lambda: schedules.iterative(jnp.array([0.5, 0.6]), steps=3),
    "margin": lambda: weight_tests.std_equivalence(WEIGHTS, margin=jnp.ones(2)),
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_a_vector_in_place_of_a_number_is_refused_by_its_shape(name):
    assert said(ONE_NUMBER[name]).startswith(f"{name} must be one number; got shape (")


@pytest.mark.parametrize("n", ["7", None, True, [7]])
@pytest.mark.parametrize(
    "function",
    [
        odd_points.cluster_growth,
        odd_points.odd_state,
        odd_points.escape_ratio,
        mean_field.expected_norm_factor,
        filters.norm_envelope,
        filters.gaussian_filter_geometry,
        tree.end_bounds,
        partial(ranks.mean_rows_bound, gamma=0.1),
        partial(tree.limits, r=1.0),
        partial(tree.tree_gram, X),
        partial(cells.number_of_cells, dims=2),
        partial(filters.welch_bound, 3),
        partial(ranks.rank_tail, 5, 0.1),
        partial(odd_points.invariant_representation, 3),
        partial(odd_points.cluster_spread, activation=jnp.tanh),
    ],
)
def test_a_number_of_samples_or_layers_is_an_int(function, n):
    assert f" must be an int; got {n!r}" in said(lambda: function(n))


@pytest.mark.parametrize("function", [tree.end_bounds, odd_points.cluster_growth])
def test_an_array_of_one_number_is_a_number(function):
    assert function(jnp.array(7)) == function(np.array(7)) == function(7)


def test_a_traced_depth_names_the_cure():
    text = said(lambda: jax.jit(tree.tree_gram)(X, 3))
    assert text == "depth must be an int; got a traced value: make it a static argument of jit"


# Without a check, these calls would return a number.
SILENT = {
    "distance must lie in [0, inf]": lambda: shift.certified_upper_bound(
        shift.dyt_bounds(0.5, X[0]), -1.0
    ),
    "var_y must not be negative": lambda: shift.sharp_moment_upper_bound(
        X[0], X[0] ** 2, X[0], -abs(X[0])
    ),
    "x and y must be given together": lambda: shift.unitized_upper_bound(0.0, X),
    "x_weights must be finite": lambda: shift.emd_1d(X, X, x_weights=jnp.full(8, math.nan)),
    "x must be real": lambda: shift.emd(X.astype(complex), X.astype(complex)),
    "p_values must lie in [0, 1]; 1 of 2": lambda: weight_tests.holm(jnp.array([0.1, 3.0])),
    "margin must be positive": lambda: weight_tests.std_equivalence(
        WEIGHTS, margin=jnp.array(-1.0)
    ),
    "scale must be positive": lambda: weight_tests.ks_normal(WEIGHTS, scale=jnp.array(-1.0)),
    "dims must be an int; got Array(9": lambda: gaussian.l1_l2_ratio_variance(jnp.array(9)),
    "dims must be an int; got 2.5": lambda: gaussian.l1_l2_ratio_variance(2.5),
    "num_filters must be an int": lambda: ranking.chance_overlap(6.5, ratio=0.5),
    "alike must return one number": lambda: ranking.permutation_p_value(
        KEY, X[0], X[1], alike=lambda a, b: a - b
    ),
    "curve must rise from 0 to the target": lambda: schedules.iterative(
        0.5, steps=3, curve=lambda target, t: target * (1 - t)
    ),
    "curve must rise from 0 to the target 0.5; got (-0.3": lambda: schedules.iterative(
        0.5, steps=3, curve=lambda target, t: 1.2 * t - 0.7
    ),
    "the fraction that curve returns must be a number; got None": lambda: schedules.iterative(
        0.5, steps=3, curve=lambda target, t: None
    ),
    "shared must be True": lambda: gaussian.norm_sum_ratio_variance_limit(4, 9, shared="no"),
    "counts must lie in [0, inf]": lambda: jaxnorm.merge_moments(MOMENTS, MOMENTS, counts=(8, -8)),
    "counts must be a number": lambda: jaxnorm.merge_moments(MOMENTS, MOMENTS, counts=("8", "8")),
    "the count of b must lie in [0, inf]": lambda: jaxnorm.merge_statistics(
        STATISTICS, STATISTICS._replace(count=-3.0)
    ),
    "the count of b must be one number": lambda: jaxnorm.merge_statistics(
        STATISTICS, STATISTICS._replace(count=jnp.ones(4))
    ),
    "axis_index_groups need an axis_name": lambda: jaxnorm.batch_norm(X, axis_index_groups=[[0]]),
    "alpha must be real": lambda: jaxnorm.unitize(X, jnp.array(1j)),
    "gram must have no negative square": lambda: mean_field.rescale_step(-X @ X.T),
    "norm_ratio must lie in [0, inf]": lambda: odd_points.escape_step(-1.0),
    "loss must return one number": lambda: jaxnorm.nnx.microbatched(
        lambda model, x: model(x).sum(-1), 2
    )(jaxnorm.nnx.BatchNorm(4, rngs=rngs()), X),
    "draw must return real numbers": lambda: sampling.monte_carlo(
        lambda key: jax.random.normal(key).astype(complex), KEY, 10
    ),
    "dtype must be a floating dtype": lambda: jaxnorm.nnx.BatchNorm(4, dtype=int, rngs=rngs()),
    "groups must be an int; got 2.0": lambda: jaxnorm.nnx.BatchNorm(4, groups=2.0, rngs=rngs()),
    "use_running_average must be True or False; got 'eval'": lambda: jaxnorm.nnx.BatchNorm(
        4, rngs=rngs()
    )(X, "eval"),
    # Here, the user means 4 as the number of features.
    "use_running_average must be True or False; got 4": lambda: jaxnorm.linen.BatchNorm(4).init(
        KEY, X
    ),
    "samples must be at least 2; got 0": lambda: claims.Draws(lambda key: {"x": 1.0}, 0),
    "moment must be one of mean, variance; got 'median'": lambda: claims.Claim("p", "n", "s").mean(
        "m", 0.0, claims.Draws(lambda key: {"x": 1.0}, 9), "x", moment="median"
    ),
    "relation must be one of identity": lambda: claims.Claim(
        "p", "n", "s", [claims.Computed("m", lambda: 0.0, "equal")]
    ),
}


@pytest.mark.parametrize("sentence", SILENT)
def test_what_gave_a_wrong_number_is_refused(sentence):
    assert said(SILENT[sentence]).startswith(sentence)


def claim(values, **named):
    made = claims.Claim("p", "n", "s")
    made.equal("is zero", **named)(values)
    return made


# Without a check, JAX or Python would raise an error in these calls.
RAW = {
    "axis_name must name an axis that vmap": lambda: jaxnorm.batch_norm(X, axis_name="i"),
    "a must be BatchStatistics; got tuple": lambda: jaxnorm.merge_statistics((X, X), STATISTICS),
    "mean and var of a must have one shape": lambda: jaxnorm.merge_statistics(
        STATISTICS._replace(var=X[0, :2]), STATISTICS
    ),
    "running must be BatchStatistics": lambda: jaxnorm.batch_renorm(X, running=(X[0], X[0])),
    "a must be Moments": lambda: jaxnorm.merge_moments(STATISTICS, MOMENTS, counts=(1, 2)),
    "counts must be the two numbers": lambda: jaxnorm.merge_moments(MOMENTS, MOMENTS, counts=8),
    "correction must be a function": lambda: jaxnorm.batch_norm(X, correction=1.1),
    "running_correction must be a function": lambda: jaxnorm.nnx.BatchNorm(
        4, running_correction=1.0, rngs=rngs()
    )(X),
    "scale must fit a float": lambda: jaxnorm.batch_norm(X, 10**400),
    "alpha must fit a float": lambda: jaxnorm.unitize(X, 10**400),
    "rngs must be nnx.Rngs": lambda: jaxnorm.nnx.BatchNorm(4, rngs=KEY),
    "mask must be an array; got list": lambda: jaxnorm.nnx.BatchNorm(4, rngs=rngs())(
        X, mask=[True] * 8
    ),
    "an initializer must be a function": lambda: jaxnorm.linen.BatchNorm(
        use_running_average=False, scale_init=1.0
    ).init(KEY, X),
    "dtype must be a floating dtype, such as jnp.bfloat16; got 4": lambda: jaxnorm.linen.DyT(
        4
    ).init(KEY, X),
    "transform must be a function": lambda: jaxnorm.nnx.Unitization(
        4, transform="unitize", rngs=rngs()
    )(X),
    "model must be a flax.nnx.Module; got Dense": lambda: jaxnorm.nnx.layer_outputs(
        linen.Dense(3), ["a"], X
    ),
    "model must be a flax.nnx.Module; got UnitizedBatchNorm": lambda: jaxnorm.nnx.fix_pixels(
        jaxnorm.linen.UnitizedBatchNorm(), X
    ),
    # This `call` runs the user's model instead of its argument `model`.
    "call must call the model that it gets": lambda: jaxnorm.nnx.recalibrate(
        NORM, [X], call=lambda model, batch: NORM(batch)
    ),
    "batches must be a list": lambda: jaxnorm.nnx.recalibrate(
        MLP(classes=2, rngs=rngs()), {"x": X}
    ),
    "widths must be at least 1": lambda: MLP(classes=2, widths=(3, 0), rngs=rngs()),
    "hidden must be a list": lambda: VGG(11, classes=2, hidden=512, rngs=rngs()),
    "depth must be an int; got '20'": lambda: CifarResNet("20", classes=2, rngs=rngs()),
    "x_weights must be an array": lambda: shift.emd_1d(X, X, x_weights=[1.0] * 8),
    "before and after must have the same features": lambda: shift.layer_shift(X, X[:, :2]),
    "exact must be an int": lambda: shift.layer_shift(X, X, exact=2.5),
    "outputs must return the same layers": lambda: shift.stream_moments(
        lambda x: {str(len(x)): x}, [X, X[:3]]
    ),
    "scores must be a dictionary": lambda: ranking.similarity([X[0]] * 4, ratio=0.5),
    "alike must be a function": lambda: ranking.permutation_p_value(
        KEY, X[0], X[1], alike="kendall"
    ),
    "ratio must be a Python number; got a traced": lambda: jax.jit(ranking.lowest)(X[0], ratio=0.5),
    "shape must be positive": lambda: gaussian.scaled_l1_l2_correlation(9, shape=0),
    "kernel must be a KernelMap": lambda: mean_field.cubic_term(jnp.tanh),
    "activation must be a function of JAX": lambda: mean_field.kernel_map(np.tanh),
    "activation must map each number by itself": lambda: jax.jit(
        lambda: mean_field.kernel_map(jax.nn.softmax).mean_square
    )(),
    "activation must return an array": lambda: mean_field.kernel_map(lambda x: None),
    "kinks must be a tuple": lambda: mean_field.kernel_map(jax.nn.relu, 0.0),
    "normalization must return an array": lambda: networks.random_network(
        KEY, X, depth=2, width=3, normalization=jaxnorm.batch_norm
    ),
    "layers must be a list": lambda: networks.random_network(KEY, X, depth=2, width=3, layers=2),
    "parameters must be a list": lambda: sampling.monte_carlo(
        lambda key, x: x, KEY, 9, parameters=3.0
    ),
    "devices must be a list": lambda: sampling.monte_carlo(
        jax.random.normal, KEY, 9, devices="cpu"
    ),
    "the function of a check must return real numbers": lambda: claims.check(
        claim(lambda: None), KEY
    ),
    "the number of a check must be a number": lambda: claim(lambda: 0.0, number="0"),
    "measured must be the result of measure": lambda: claims.decide([claim(lambda: 0.0)], {}),
    "claims must be a list of `Claim`": lambda: claims.about(None, "Theorem 1"),
    "threads must be at least 1": lambda: claims.measure([claim(lambda: 0.0)], KEY, threads=0),
    "loss must be a function": lambda: channels.taylor_scores(X, [], loss="mse", batches=[X]),
    "score must be a function": lambda: channels.mean_scores(X, [], score="l1", batches=[X]),
    "measure must be a function": lambda: channels.sensitivity(X, [], measure="accuracy"),
    "ratios must be a list, such as [0.5]; got 0.5": lambda: channels.sensitivity(
        X, [], measure=jnp.max, ratios=0.5
    ),
    "ratios must be a list, such as [0.5]; got 0.25": lambda: channels.sensitivity(
        X, [], measure=jnp.max, ratios=np.float32(0.25)
    ),
    "batch_sizes must be an int": lambda: pruning.cost(jnp.dot, X, X.T, batch_sizes=["8"]),
    "inputs must hold one batch": lambda: pruning.nnx.prune(
        MLP(inputs=4, widths=(3,), classes=2, rngs=rngs()), budget=0.5
    ),
    "layers must hold the name of at least one": lambda: jaxnorm.nnx.layer_outputs(
        MLP(inputs=4, widths=(3,), classes=2, rngs=rngs()), [], X
    ),
}


@pytest.mark.parametrize(
    "reader",
    [
        pruning.cost,
        channels.coupled_channels,
        channels.fixed_channels,
        channels.fold_batch_norms,
        lambda *swapped: channels.output_error(*swapped),
    ],
)
def test_parameters_in_place_of_a_function_are_named(reader):
    text = said(lambda: reader({"a": X.T}, lambda params, x: x @ params["a"], X))
    assert text == "apply must be a function, such as lambda params, x: ...; got dict"


@pytest.mark.parametrize("sentence", RAW)
def test_what_failed_inside_is_refused_at_the_door(sentence):
    assert said(RAW[sentence]).startswith(sentence)


@pytest.mark.parametrize(
    "test",
    [
        lambda wrong: weight_tests.std_equivalence(WEIGHTS, margin=wrong),
        lambda wrong: weight_tests.mean_equivalence(WEIGHTS, margin=wrong),
        lambda wrong: weight_tests.ks_equivalence(WEIGHTS, margin=wrong),
        lambda wrong: weight_tests.ks_normal(WEIGHTS, scale=wrong),
    ],
)
def test_a_traced_margin_or_scale_that_is_not_positive_gives_nan(test):
    for wrong in (-1.0, 0.0):
        assert jnp.isnan(jax.jit(test)(wrong).p_value)


def test_bounds_of_a_scale_with_nan_are_nan():
    bad = X[0].at[1].set(math.nan)
    for bounds in (
        shift.layer_norm_bounds(bad),
        shift.rms_norm_bounds(bad),
        shift.dyt_bounds(0.5, bad),
        shift.unitized_bounds(0.5, bad),
    ):
        assert jnp.isnan(bounds.radius)
        assert jnp.isnan(bounds.lipschitz)


def test_linen_initializes_a_layer_with_groups_of_devices():
    layer = jaxnorm.linen.BatchNorm(
        use_running_average=False, axis_name="i", axis_index_groups=((0, 1),)
    )
    assert layer.init(KEY, X)["params"]["scale"].shape == (4,)


HALF, TWO = jnp.asarray(0.5), jnp.asarray(2.0)
RUNNING = jaxnorm.BatchStatistics(jnp.zeros(5), jnp.ones(5), jnp.asarray(8.0))
KNOWN = {
    "batch_norm": lambda x: jaxnorm.batch_norm(x, eps=HALF)[0],
    "unitized_batch_norm": lambda x: jaxnorm.unitized_batch_norm(x, HALF, eps=HALF)[0],
    "batch_renorm": lambda x: jaxnorm.batch_renorm(x, running=RUNNING, r_max=TWO, d_max=HALF)[0],
    "unitize": lambda x: jaxnorm.unitize(x, HALF),
    "std_equivalence": lambda x: weight_tests.std_equivalence(x, margin=HALF).p_value,
    "ks_normal": lambda x: weight_tests.ks_normal(x[0], scale=TWO).p_value,
    "expected_overlap": lambda x: gaussian.expected_overlap(8, 9, ("l1", "l2"), ratio=HALF),
    "gaussian_filter_geometry": lambda x: filters.gaussian_filter_geometry(9, std=TWO),
}


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_may_be_arrays_that_are_known_inside_jit(name, key):
    x = jax.random.normal(key, (8, 5))
    np.testing.assert_allclose(jax.jit(KNOWN[name])(x), KNOWN[name](x), rtol=1e-10)


@pytest.mark.parametrize(
    "step",
    [
        *(mean_field.cosine_step, mean_field.rms_cosine_step),
        *(mean_field.kernel_map(jnp.tanh), mean_field.kernel_map(jax.nn.relu, (0.0,))),
    ],
    ids=["relu", "rms norm", "tanh", "relu as a series"],
)
def test_a_cosine_outside_of_its_range_gives_nan_and_a_rounded_one_does_not(step):
    assert jnp.isnan(step(jnp.array([1.5, -1.5, 1.02, jnp.nan]))).all()
    expected = jnp.nan if step is mean_field.rms_cosine_step else 1
    np.testing.assert_allclose(step(jnp.array([1 + 1e-6])), [expected], rtol=1e-5)
