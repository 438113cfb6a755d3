"""Distances, scores and tests of arrays that are sharded over eight devices.

The axes of the mesh are Explicit or Auto.
"""

import inspect
import types
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import pruning
from jaxnorm import shift
from pruning import channels, criteria, gaussian, ranking, schedules, weight_tests
from tests.support.numpy_programs import evaluated
from tests.support.products import assert_full_precision

MESHES = {  # `jax.make_mesh` makes Explicit axes by default
    "explicit": jax.make_mesh((8,), ("data",)),
    "auto": jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)),
}
random = np.random.default_rng(0)
X, Y = random.normal(size=(16, 8)) + 1, random.normal(size=(24, 8))
MAPS = random.normal(size=(8, 2, 1, 8))
KERNEL = random.normal(size=(8, 3, 8, 16))
VAR, SCORES = random.uniform(0.1, 1, 8), random.normal(size=16)
PAIR = (SCORES, SCORES**2)
MOMENTS = (VAR, VAR, 2 * VAR, VAR)


def with_key(function, **options):
    return partial(function, jax.random.key(0), **options)


def similarity(a, b):
    return pruning.ranking.similarity({"l1": a, "l2": b, "fermat": a, "gm": b}, ratio=0.5)


def channel_scores(a, b):
    def network(params, x):
        return jax.nn.relu(x @ params[0]) @ params[1]

    groups = pruning.coupled_channels(network, (a, b), jnp.ones((1, len(a))))
    return pruning.channels.channel_scores((a, b), groups)


def layer_shift(before, after):
    return tuple(shift.layer_shift(before, after, exact=5))


def tracker(probe):
    follow = shift.Tracker(lambda scale, x: {"layer": scale * x}, probe)
    return [follow.update(jnp.array(scale))["layer"]["moments"] for scale in (1.0, 2.0)][1]


def select_layerwise(scores):
    return pruning.channels.select_layerwise([scores], ratio=0.5)


def select_globally(a, b):
    return pruning.channels.select_globally([a, b], ratio=0.5)


# Calls of each public function, with the arguments that are sharded.
DIFFERENTIABLE = {
    "emd_1d": [
        (shift.emd_1d, (X, X + X**2)),
        (shift.emd_1d, (X, Y)),
        (shift.emd_1d, (MAPS, MAPS + MAPS**2)),
        (lambda x, y, w: shift.emd_1d(x, y, x_weights=w), (X, Y, SCORES**2)),
    ],
    "emd_sliced": [(with_key(shift.emd_sliced, projections=8), (X, Y))],
    "clipped_power": [(partial(shift.clipped_power, radius=2.0), (X,))],
    "moment_upper_bound": [(shift.moment_upper_bound, MOMENTS)],
    "sharp_moment_upper_bound": [(shift.sharp_moment_upper_bound, MOMENTS)],
    "normalized_upper_bound": [(shift.normalized_upper_bound, MOMENTS)],
    "normalized_lower_bound": [(partial(shift.normalized_lower_bound, radius=2.0), MOMENTS)],
    "mean_lower_bound": [(shift.mean_lower_bound, (VAR, 2 * VAR))],
    "moment_lower_bound": [(partial(shift.moment_lower_bound, radius=2.0), (X, Y))],
    "paired_upper_bound": [(shift.paired_upper_bound, (MAPS, MAPS + MAPS**2))],
    "unitized_upper_bound": [(shift.unitized_upper_bound, (VAR, X, Y))],
    "sharp_unitized_upper_bound": [(shift.sharp_unitized_upper_bound, (VAR, X, Y))],
    "interpolated_upper_bound": [(shift.interpolated_upper_bound, (VAR, X, Y))],
    "layer_norm_bounds": [(shift.layer_norm_bounds, (VAR,))],
    "rms_norm_bounds": [(shift.rms_norm_bounds, (VAR,))],
    "dyt_bounds": [(shift.dyt_bounds, (VAR, VAR + 1))],
    "derf_bounds": [(shift.derf_bounds, (VAR, VAR + 1))],
    "unitized_bounds": [(shift.unitized_bounds, (VAR / (1 + VAR), VAR + 1))],
    "certified_upper_bound": [
        (
            lambda s: shift.certified_upper_bound(shift.dyt_bounds(0.5, s), jnp.ones((), s.dtype)),
            (VAR,),
        )
    ],
    "filter_matrix": [
        (pruning.filter_matrix, (KERNEL,)),
        (lambda k: pruning.filter_matrix(jnp.moveaxis(k, 0, 2)), (MAPS,)),
    ],
    **{criterion.__name__: [(criterion, (X,))] for criterion in pruning.CRITERIA.values()},
    "geometric_median": [(pruning.geometric_median, (X,))],
    "optimality_gap": [(pruning.criteria.optimality_gap, (X[0], X))],
    "repr_score": [(pruning.criteria.repr_score, (X,))],
    "scores": [(pruning.criteria.scores, (X,))],
    "covariance": [(pruning.weight_tests.covariance, (X,))],
    "covariance_report": [(pruning.weight_tests.covariance_report, (X,))],
    "ks_normal": [(pruning.ks_normal, (X,))],
    "ks_distance": [(pruning.weight_tests.ks_distance, (X,))],
    "ks_bound": [(pruning.weight_tests.ks_bound, (X,))],
    "ks_equivalence": [(partial(pruning.weight_tests.ks_equivalence, margin=0.9), (X,))],
    "lilliefors": [(with_key(pruning.lilliefors, samples=9), (X,))],
    "anderson_darling": [(with_key(pruning.weight_tests.anderson_darling, samples=9), (X,))],
    "fit_generalized_gaussian": [(pruning.weight_tests.fit_generalized_gaussian, (X,))],
    "ks_generalized_gaussian": [
        (with_key(pruning.weight_tests.ks_generalized_gaussian, samples=9), (X,))
    ],
    "filter_stds": [(pruning.weight_tests.filter_stds, (X,))],
    "fit_filter_model": [(pruning.gaussian.fit_filter_model, (X,))],
    "std_homogeneity": [(pruning.std_homogeneity, (X,))],
    "std_equivalence": [(partial(pruning.weight_tests.std_equivalence, margin=0.5), (X,))],
    "mean_equivalence": [(partial(pruning.mean_equivalence, margin=0.5), (X,))],
    "symmetry": [(pruning.weight_tests.symmetry, (X,))],
    "holm": [(pruning.weight_tests.holm, (SCORES**2 / 10,))],
    "overlap": [(partial(pruning.overlap, ratio=0.5), PAIR)],
    "spearman": [(pruning.spearman, PAIR)],
    "kendall": [(pruning.kendall, PAIR)],
    "similarity": [(similarity, PAIR)],
    "spearman_z_score": [(pruning.ranking.spearman_z_score, (X[0], X))],
    "permutation_p_value": [(with_key(pruning.ranking.permutation_p_value, samples=9), PAIR)],
    "half_normal_moment": [(pruning.gaussian.half_normal_moment, (VAR, VAR))],
    "chi_moment": [(pruning.gaussian.chi_moment, (VAR, VAR, VAR))],
    "chi_variance": [(pruning.gaussian.chi_variance, (VAR, VAR))],
    "amoroso_moment": [(partial(pruning.gaussian.amoroso_moment, order=2), (VAR, VAR, VAR, VAR))],
    "l1_l2_correlation": [(pruning.l1_l2_correlation, (VAR,))],
    "scaled_l1_l2_correlation": [
        (lambda n: pruning.gaussian.scaled_l1_l2_correlation(9 + n, spread=0.1), (VAR,))
    ],
    "normal_spearman": [(lambda n: pruning.gaussian.normal_spearman(0.5, 9 + n), (VAR,))],
    "normal_kendall": [(lambda n: pruning.gaussian.normal_kendall(jnp.sin(n) / 2), (VAR,))],
    "normal_overlap": [
        (lambda n: pruning.gaussian.normal_overlap(jnp.sin(n) / 2, ratio=0.4), (VAR,))
    ],
    "expected_spearman": [(lambda n: pruning.expected_spearman(n, n, ("l1", "gm")), (9 + VAR,))],
    "expected_overlap": [
        (lambda n: pruning.gaussian.expected_overlap(n, n, ("l1", "gm"), ratio=0.3), (9 + VAR,))
    ],
}
PIECEWISE_CONSTANT = {
    "order": [(pruning.order, (SCORES,))],
    "lowest": [(partial(pruning.ranking.lowest, ratio=0.5), (SCORES,))],
}
TRAINED = {
    "emd_critic": [
        (with_key(shift.emd_critic, steps=1, batch_size=2), (MAPS, MAPS + 1, MAPS, MAPS + 1))
    ],
    "emd_lower_bound": [
        (with_key(shift.emd_lower_bound, steps=1, batch_size=2), (MAPS, MAPS + 1, MAPS, MAPS + 1))
    ],
}
ON_THE_HOST = {
    "emd": [(shift.emd, (MAPS, MAPS + MAPS**2))],
    "transport_plan": [(shift.transport_plan, (MAPS, MAPS + MAPS**2))],
    "layer_shift": [(layer_shift, (MAPS, MAPS + MAPS**2))],
    "stream_moments": [(lambda x: shift.stream_moments(lambda y: {"layer": y}, [x, x]), (X,))],
    "Tracker": [(tracker, (X,))],
    "channel_scores": [(channel_scores, (X, np.ones((8, 16))))],
    "select_layerwise": [(select_layerwise, (SCORES,))],
    "select_globally": [(select_globally, PAIR)],
}
# The arguments of these functions are Python numbers, names, shapes, keys, whole networks or
# features of a network.
OTHERS = {
    "chance_overlap",
    "check_program",
    "clusters",
    "compiled_bytes",
    "compiled_cycles",
    "compiled_flops",
    "cost",
    "cost_at",
    "coupled_channels",
    "cubic",
    "excluding",
    "expected_distance",
    "fixed_channels",
    "fold_batch_norms",
    "fold_constants",
    "gaussian_similarity",
    "geometric",
    "interpolation_counterexample",
    "iterative",
    "l1_l2_ratio_variance",
    "l1_l2_ratio_variance_limit",
    "least_squares",
    "linear",
    "load_pruned",
    "mask_channels",
    "mean_projection",
    "merge_channels",
    "milliseconds",
    "norm_sum_ratio_variance",
    "norm_sum_ratio_variance_limit",
    "prune",
    "reconstruction_scores",
    "remove_channels",
    "rescale",
    "resized",
    "save_pruned",
    "select_within",
    "swap_channels",
    "mean_scores",
    "output_error",
    "sensitivity",
    "taylor_scores",
    "transport",
    "wanda_scores",
    "widths",
    "widths_for",
}
COMPILED = DIFFERENTIABLE | PIECEWISE_CONSTANT | TRAINED
# A test is fast if it shards samples or filters over Explicit axes. All other tests are slow.
on_each_mesh = pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(mesh, id=kind, marks=[pytest.mark.slow] if kind == "auto" else [])
        for kind, mesh in MESHES.items()
    ],
)


def calls(table):
    return {
        f"{name}-{i}" if i else name: call
        for name, calls in table.items()
        for i, call in enumerate(calls)
    }


def each(table, fast=None):
    """Parametrize over calls and over the array axis that is sharded: first or (matrices) last."""
    table = calls(table)
    params = [
        pytest.param(
            name,
            axis,
            id=f"{name}-{where}",
            marks=[pytest.mark.slow] if axis or name not in (fast or table) else [],
        )
        for name, (_, args) in table.items()
        for axis, where in ((0, "samples"), (-1, "features"))
        if axis == 0 or any(x.ndim > 1 for x in args)
    ]
    return pytest.mark.parametrize(("name", "axis"), params)


CALLS = calls(COMPILED | ON_THE_HOST)


def whole(args):
    return [jnp.asarray(x) for x in args]


@cache
def on_one_device(name):
    """The result and the gradient on one device, evaluated by NumPy.

    Functions that run on the host are called without a change.
    """
    call, args = with_gradient(name), whole(CALLS[name][1])
    found, gradient = call(args) if name in calls(ON_THE_HOST) else evaluated(call, args)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    return found, gradient


def spread(args, mesh, axis):
    """Arrays that are sharded along `axis`."""
    specs = [P(*["data" if k == axis % x.ndim else None for k in range(x.ndim)]) for x in args]
    return [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, specs, strict=True)]


def assert_same(found, expected):
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
    jax.tree.map(close, found, expected)


def gradient(name):
    """A function that returns the gradient of a weighted sum of all results."""

    def total(args):
        leaves = jax.tree.leaves(CALLS[name][0](*args))
        return sum((i + 1) * jnp.sum(jnp.sin(1.0 * x)) for i, x in enumerate(leaves))

    return jax.grad(total)


@cache
def with_gradient(name):
    """A compiled function that returns the result and the gradient, if the call has a gradient.

    Host functions are not compiled.
    """
    function = CALLS[name][0]
    if name in calls(ON_THE_HOST):
        return lambda args: (function(*args), None)
    derivative = gradient(name) if name in calls(DIFFERENTIABLE) else lambda _: None
    return jax.jit(lambda args: (function(*args), derivative(args)))


def test_the_tables_hold_every_public_function():
    public = {
        name
        for package in (shift, channels, criteria, gaussian, ranking, schedules, weight_tests)
        for name, value in vars(package).items()
        if isinstance(inspect.unwrap(value), types.FunctionType)
        and not name.startswith("_")
        and value.__module__.startswith(package.__name__)
    }
    assert public == (set(COMPILED | ON_THE_HOST) - {"Tracker"}) | OTHERS


# Neighbors in the table share code, so only every other call runs in fast tests. `fermat` and
# `lilliefors` take seconds, and share their code with `geometric_median` and `ks_normal`. Only
# `emd_1d-3` has an array as a keyword argument.
@each(COMPILED, fast={*list(calls(COMPILED))[::2], "emd_1d-3"} - {"fermat", "lilliefors"})
@on_each_mesh
def test_what_is_spread_has_the_same_result_and_gradient_under_jit(name, axis, mesh):
    assert_same(with_gradient(name)(spread(CALLS[name][1], mesh, axis)), on_one_device(name))


@pytest.mark.parametrize("name", calls(DIFFERENTIABLE | PIECEWISE_CONSTANT))
def test_products_do_not_depend_on_the_precision_of_a_device(name):
    assert_full_precision(jax.make_jaxpr(with_gradient(name))(whole(CALLS[name][1])))


# In float32, these functions draw other random numbers than in float64.
DRAWN = {"emd_sliced", "lilliefors", "anderson_darling", "ks_generalized_gaussian"}
DRAWN |= {"permutation_p_value"}


@pytest.mark.parametrize(
    "name", [name for name in calls(DIFFERENTIABLE) if name.split("-")[0] not in DRAWN]
)
def test_single_precision_has_the_result_of_double_precision(name):
    function, args = CALLS[name]
    found = evaluated(function, *map(np.float32, args))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, found, on_one_device(name)[0])


@each(ON_THE_HOST)
def test_what_is_spread_gives_the_same_on_the_host(name, axis):
    found = with_gradient(name)(spread(CALLS[name][1], MESHES["explicit"], axis))
    assert_same(found, on_one_device(name))


@pytest.mark.slow
@each(COMPILED)
def test_what_is_spread_gives_the_same_outside_jit(name, axis):
    function, args = CALLS[name]
    assert_same(function(*spread(args, MESHES["explicit"], axis)), on_one_device(name)[0])


@each(DIFFERENTIABLE, fast={"emd_1d-2", "moment_lower_bound", "fermat", "ks_normal"})
def test_the_mesh_may_be_the_context_too(name, axis):
    mesh = MESHES["explicit"]
    with jax.set_mesh(mesh):
        found = with_gradient(name)(spread(CALLS[name][1], mesh, axis))
    assert_same(found, on_one_device(name))


@pytest.mark.parametrize(
    "function",
    [
        pruning.l1_norm,
        pruning.l2_norm,
        pruning.weight_tests.filter_stds,
        lambda x: pruning.filter_matrix(x.T),
    ],
    ids=["l1_norm", "l2_norm", "filter_stds", "filter_matrix"],
)
def test_results_for_each_filter_stay_where_the_filters_are(function):
    (filters,) = spread([X], MESHES["explicit"], 0)
    assert jax.typeof(function(filters)).sharding.spec[0] == "data"
