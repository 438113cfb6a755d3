"""Functions that run on the host reject traced arrays. The error names an alternative."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from jaxnorm import shift

X, SCORES = jnp.ones((4, 3)), jnp.arange(4.0)
PARAMS = {"a": jnp.ones((2, 4)), "b": jnp.ones((4, 3))}


def mlp(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


GROUPS = pruning.coupled_channels(mlp, PARAMS, jnp.ones((1, 2)))
KEEP = jnp.array([True, False, True, True])


def tracked(x):
    shift.Tracker(lambda state, probe: {"layer": state * probe}, X).update(x)


def saved(params):
    pruned = pruning.Pruned(params, GROUPS, (np.ones(4, bool),), mlp)
    pruning.save_pruned("nowhere", pruned)


# The keys are the names of functions in messages. A value has a call of the function, the traced
# arguments of the call, and the alternative that the message names.
HOST = {
    "emd": (shift.emd, (X, X), "use emd_1d or emd_sliced"),
    "transport_plan": (shift.transport_plan, (X, X), "outside jit, vmap and grad"),
    "layer_shift": (
        shift.layer_shift,
        (X, X),
        "use emd_1d, mean_lower_bound and paired_upper_bound",
    ),
    "Tracker.update": (tracked, (SCORES[0],), "use emd_1d and moments"),
    "mean_projection": (shift.mean_projection, (3,), "outside jit, vmap and grad"),
    "interpolation_counterexample": (
        lambda alpha: shift.interpolation_counterexample(alpha, length=3.0),
        (0.5,),
        "outside jit, vmap and grad",
    ),
    "l1_l2_ratio_variance": (pruning.l1_l2_ratio_variance, (9,), "give dims as Python numbers"),
    "l1_l2_ratio_variance_limit": (
        pruning.gaussian.l1_l2_ratio_variance_limit,
        (9,),
        "give dims as Python numbers",
    ),
    "norm_sum_ratio_variance": (
        pruning.gaussian.norm_sum_ratio_variance,
        (9, 9),
        "give n and dims as Python numbers",
    ),
    "norm_sum_ratio_variance_limit": (
        pruning.gaussian.norm_sum_ratio_variance_limit,
        (9, 9),
        "give n and dims as Python numbers",
    ),
    "chance_overlap": (
        partial(pruning.ranking.chance_overlap, ratio=0.5),
        (8,),
        "give num_filters and ratio as Python numbers",
    ),
    "iterative": (
        partial(pruning.schedules.iterative, steps=2),
        (0.5,),
        "give target and steps as Python numbers",
    ),
    "select_layerwise": (
        lambda s: pruning.channels.select_layerwise([s], ratio=0.5),
        (SCORES,),
        "use lowest, a mask of removed scores",
    ),
    "select_globally": (
        lambda s: pruning.channels.select_globally([s], ratio=0.5),
        (SCORES,),
        "use lowest on all scores together",
    ),
    "remove_channels": (
        lambda keep: pruning.remove_channels(PARAMS, GROUPS, [keep]),
        (KEEP,),
        "for a traced keep, use mask_channels",
    ),
    "fold_constants": (
        lambda keep: pruning.channels.fold_constants(mlp, PARAMS, GROUPS, [keep], jnp.ones((1, 2))),
        (KEEP,),
        "for a traced keep, use mask_channels alone",
    ),
    "least_squares": (
        lambda x: pruning.channels.least_squares(mlp, PARAMS, GROUPS, [KEEP], [(x,), (x,)]),
        (jnp.ones((1, 2)),),
        "repair before compiling",
    ),
    "rescale": (
        lambda x: pruning.channels.rescale(mlp, PARAMS, GROUPS, [KEEP], [(x,)]),
        (jnp.ones((1, 2)),),
        "repair before compiling",
    ),
    "merge_channels": (
        lambda params: pruning.channels.merge_channels(
            mlp, params, GROUPS, [KEEP], inputs=(jnp.ones((1, 2)),)
        ),
        (PARAMS,),
        "merge before compiling",
    ),
    "reconstruction_scores": (
        lambda x: pruning.channels.reconstruction_scores(PARAMS, GROUPS, apply=mlp, batches=[(x,)]),
        (jnp.ones((1, 2)),),
        "choose channels before compiling",
    ),
    "sensitivity": (
        lambda params: pruning.channels.sensitivity(params, GROUPS, measure=lambda tree: 0.0),
        (PARAMS,),
        "call sensitivity before compiling",
    ),
    "swap_channels": (
        lambda x: pruning.channels.swap_channels(mlp, PARAMS, GROUPS, [KEEP], batches=[(x,)]),
        (jnp.ones((1, 2)),),
        "choose channels before compiling",
    ),
    "resized": (
        lambda keep: pruning.channels.resized(mlp, GROUPS, [keep])(PARAMS, jnp.ones((1, 2))),
        (KEEP,),
        "for a traced keep, use mask_channels",
    ),
    "prune": (
        lambda params: pruning.prune(mlp, params, jnp.ones((1, 2)), ratios=(0.5,)),
        (PARAMS,),
        "prune first, and compile the smaller network",
    ),
    "a timing of cost": (
        lambda params: pruning.cost(mlp, params, jnp.ones((1, 2)), batch_sizes=(1,)),
        (PARAMS,),
        "leave batch_sizes empty",
    ),
    "a timing of cost_at": (
        lambda params: pruning.channels.cost_at(
            mlp, params, GROUPS, jnp.ones((1, 2)), batch_sizes=(1,)
        ),
        (PARAMS,),
        "leave batch_sizes empty",
    ),
    "select_within": (
        lambda s: pruning.channels.select_within([s], budget=1, cost=lambda widths: widths[0]),
        (SCORES,),
        "use lowest, a mask of removed scores",
    ),
    "widths_for": (
        lambda params: pruning.widths_for(mlp, params, GROUPS[0], jnp.ones((1, 2)), widths=[4]),
        (PARAMS,),
        "give arrays, or their shapes",
    ),
    "fold_batch_norms": (
        lambda params: pruning.channels.fold_batch_norms(mlp, params, jnp.ones((1, 2))),
        (PARAMS,),
        "fold first, and compile the result",
    ),
    "save_pruned": (saved, (PARAMS,), "return the arrays, and save them outside jit"),
    "weights.load": (
        lambda a: pruning.weights.load({"layer": {"kernel": a}}, dense=True),
        (X,),
        "load first, and pass the kernels in",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", HOST)
def test_traced_arguments_of_a_host_function_raise_one_sentence(name):
    call, args, instead = HOST[name]
    message = rf"^{name} runs on the host and [^\n]*{instead}(\n|$)"
    with pytest.raises(TypeError, match=message):
        jax.jit(call)(*args)


ROWS = jnp.ones((1, 2))
# The keys are the names of functions in messages. A value has a call with one traced argument,
# which is not the first argument, and the value of this argument.
ALONE = {
    "a timing of cost": (lambda x: pruning.cost(mlp, PARAMS, x, batch_sizes=(1,)), ROWS),
    "a timing of cost_at": (
        lambda x: pruning.channels.cost_at(mlp, PARAMS, GROUPS, x, batch_sizes=(1,)),
        ROWS,
    ),
    "widths_for": (lambda x: pruning.widths_for(mlp, PARAMS, GROUPS[0], x, widths=[4]), ROWS),
    "merge_channels": (
        lambda keep: pruning.channels.merge_channels(mlp, PARAMS, GROUPS, [keep], inputs=[ROWS]),
        KEEP,
    ),
    "chance_overlap": (lambda ratio: pruning.ranking.chance_overlap(8, ratio=ratio), 0.5),
    "iterative": (lambda steps: pruning.schedules.iterative(0.5, steps=steps), 3),
    "norm_sum_ratio_variance": (lambda d: pruning.gaussian.norm_sum_ratio_variance(9, d), 9),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ALONE)
def test_one_traced_argument_of_a_host_function_is_refused(name):
    call, argument = ALONE[name]
    with pytest.raises(TypeError, match=f"^{name} runs on the host and "):
        jax.jit(call)(argument)


def test_a_traced_keyword_of_a_host_function_raises_one_sentence():
    x = jnp.array([[0.0], [3.0]])
    with pytest.raises(TypeError, match=r"^emd runs on the host and cannot be traced: call it"):
        jax.jit(lambda weights: shift.emd(x, x, y_weights=weights))(jnp.array([0.2, 0.8]))


def test_what_decides_no_shape_may_be_traced():
    keep = [np.asarray(KEEP)]
    cut = jax.jit(lambda params: pruning.remove_channels(params, GROUPS, keep))(PARAMS)
    assert cut["a"].shape == (2, 3)
    assert jax.jit(lambda p: pruning.cost(mlp, p, jnp.ones((1, 2))).macs)(PARAMS) == 20


MOMENTS = (jnp.array([1.0, 0.5]), jnp.array([0.1, 0.2]), jnp.ones(2), jnp.zeros(2))
POINTS = jnp.array([[3.0, 0.0], [0.0, 0.5]])
# Functions of numbers, with example numbers that an int, a float and an array can represent.
NUMBERS = {
    "half_normal_moment": (pruning.gaussian.half_normal_moment, (2, 1)),
    "chi_moment": (pruning.gaussian.chi_moment, (2, 9, 2)),
    "chi_variance": (pruning.gaussian.chi_variance, (2, 9)),
    "amoroso_moment": (partial(pruning.gaussian.amoroso_moment, order=2), (1, 2, 3, 4)),
    "l1_l2_correlation": (pruning.l1_l2_correlation, (9,)),
    "expected_spearman": (lambda n, d: pruning.expected_spearman(n, d, ("l1", "gm")), (9, 12)),
    "expected_overlap": (
        lambda n, d: pruning.gaussian.expected_overlap(n, d, ("l1", "gm"), ratio=0.3),
        (9, 12),
    ),
    "expected_distance": (pruning.gaussian.expected_distance, (3, 2, 9)),
    "unitized_upper_bound": (shift.unitized_upper_bound, (1,)),
    "unitized_upper_bound at 0": (lambda a: shift.unitized_upper_bound(a, POINTS, -POINTS), (0,)),
    "sharp_unitized_upper_bound": (
        lambda a: shift.sharp_unitized_upper_bound(a, POINTS, -POINTS),
        (1,),
    ),
    "interpolated_upper_bound": (
        lambda a: shift.interpolated_upper_bound(a, POINTS, -POINTS),
        (1,),
    ),
    "clipped_power": (lambda r: shift.clipped_power(POINTS, radius=r), (2,)),
    "moment_lower_bound": (lambda r: shift.moment_lower_bound(POINTS, X[:, :2], radius=r), (2,)),
    "normalized_lower_bound": (lambda r: shift.normalized_lower_bound(*MOMENTS, radius=r), (2,)),
    "ks_normal": (lambda c: pruning.ks_normal(X, scale=c), (2,)),
    "ks_distance": (lambda c: pruning.weight_tests.ks_distance(X, scale=c), (2,)),
    "ks_bound": (lambda c: pruning.weight_tests.ks_bound(X, scale=c), (2,)),
    "ks_equivalence": (lambda c: pruning.weight_tests.ks_equivalence(X, margin=0.9, scale=c), (2,)),
}


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_python_number_is_as_good_as_an_array_of_one(name, kind):
    call, numbers = NUMBERS[name]
    expected = call(*(jnp.asarray(n, float) for n in numbers))
    found = call(*map(kind, numbers))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), found, expected)
    jax.tree.map(lambda x: isinstance(x, jax.Array) or pytest.fail(str(type(x))), found)


@pytest.mark.parametrize(
    "bound",
    [shift.unitized_upper_bound, shift.sharp_unitized_upper_bound, shift.interpolated_upper_bound],
)
def test_an_alpha_of_other_features_is_refused(bound):
    with pytest.raises(
        ValueError, match=r"alpha must be a scalar or have shape \(2,\); got \(3,\)"
    ):
        bound(jnp.ones(3), POINTS, POINTS)
