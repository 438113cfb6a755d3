"""What every public function keeps: one table of all of them, each with an example call."""

import inspect
import types
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
import jaxnorm
import pruning
from tests.support.layers import layer_functions
from tests.support.numpy_programs import evaluated

PACKAGES = (
    *(jaxnorm, jaxnorm.shift),
    *(pruning, pruning.channels, pruning.criteria, pruning.gaussian, pruning.nnx),
    *(pruning.ranking, pruning.schedules, pruning.weight_tests, pruning.weights),
    *(geometry, geometry.cells, geometry.filters, geometry.mean_field, geometry.networks),
    *(geometry.odd_points, geometry.ranks, geometry.sampling, geometry.tree),
)
X = np.random.default_rng(0).normal(size=(6, 4)) + 1
IMAGES = np.random.default_rng(1).normal(size=(3, 4, 4, 2))
ALPHA, SCORES = np.full(4, 0.3), np.random.default_rng(2).normal(size=7)
GRAM = X @ X.T
KERNEL = np.random.default_rng(3).normal(size=(3, 3, 2, 5))
X0, X1 = jnp.asarray(X[:2]), jnp.asarray(X[2:])
HALVES = [jaxnorm.batch_statistics(x) for x in (X0, X1)]

# Functions of arrays: positional example arguments, and the options that fix shapes or branches.
NUMERICAL = {
    jaxnorm.recenter: ((X,), {}),
    jaxnorm.rescale: ((X,), {}),
    jaxnorm.rescale_rms: ((X,), {}),
    jaxnorm.standardize: ((X,), {}),
    jaxnorm.unit_vector: ((X,), {}),
    jaxnorm.unitize_bounded: ((X, ALPHA), {}),
    jaxnorm.unitize: ((X, ALPHA), {}),
    **{layer: ((IMAGES, *[ALPHA[:2]] * n), {}) for layer, n in layer_functions().items()},
    jaxnorm.dyt: ((X, ALPHA, ALPHA, ALPHA), {}),
    jaxnorm.derf: ((X, ALPHA, ALPHA, ALPHA, ALPHA), {}),
    jaxnorm.batch_statistics: ((X,), {}),
    jaxnorm.merge_statistics: (tuple(HALVES), {}),
    jaxnorm.moments: ((X,), {}),
    jaxnorm.merge_moments: ((jaxnorm.moments(X0), jaxnorm.moments(X1)), {"counts": (2, 4)}),
    jaxnorm.bessel: ((SCORES,), {"eps": 1e-3}),
    jaxnorm.interpolated: ((ALPHA, ALPHA), {}),
    jaxnorm.bounded: ((ALPHA, ALPHA), {}),
    jaxnorm.shift.emd_1d: ((X, X[:5] + 0.1), {}),
    jaxnorm.shift.clipped_power: ((X,), {"radius": 2.0}),
    jaxnorm.shift.moment_upper_bound: ((ALPHA, ALPHA, 2 * ALPHA, ALPHA), {}),
    jaxnorm.shift.sharp_moment_upper_bound: ((ALPHA, ALPHA, 2 * ALPHA, ALPHA), {}),
    jaxnorm.shift.normalized_upper_bound: ((ALPHA, ALPHA, 2 * ALPHA, ALPHA), {}),
    jaxnorm.shift.normalized_lower_bound: ((ALPHA, ALPHA, 2 * ALPHA, ALPHA), {"radius": 2.0}),
    jaxnorm.shift.mean_lower_bound: ((ALPHA, 2 * ALPHA), {}),
    jaxnorm.shift.moment_lower_bound: ((X, X[:5] + 0.1), {"radius": 2.0}),
    jaxnorm.shift.paired_upper_bound: ((X, X + 0.1), {}),
    jaxnorm.shift.unitized_upper_bound: ((ALPHA, X, X[:5]), {}),
    jaxnorm.shift.sharp_unitized_upper_bound: ((ALPHA, X, X[:5]), {}),
    jaxnorm.shift.interpolated_upper_bound: ((ALPHA, X, X[:5]), {}),
    jaxnorm.shift.certified_upper_bound: (
        (jaxnorm.shift.LayerBounds(jnp.asarray(2.0), jnp.asarray(3.0)), np.float64(1.5)),
        {},
    ),
    jaxnorm.shift.layer_norm_bounds: ((X[0],), {"eps": 1e-3}),
    jaxnorm.shift.rms_norm_bounds: ((X[0],), {"eps": 1e-3}),
    jaxnorm.shift.dyt_bounds: ((ALPHA, X[0]), {}),
    jaxnorm.shift.derf_bounds: ((ALPHA, X[0]), {}),
    jaxnorm.shift.unitized_bounds: ((ALPHA, X[0]), {}),
    pruning.filter_matrix: ((KERNEL,), {}),
    **dict.fromkeys(pruning.CRITERIA.values(), ((X,), {})),
    pruning.geometric_median: ((X,), {}),
    pruning.criteria.optimality_gap: ((X[0], X), {}),
    pruning.criteria.repr_score: ((X,), {}),
    pruning.criteria.scores: ((X,), {}),
    pruning.order: ((SCORES,), {}),
    pruning.ranking.lowest: ((SCORES,), {"ratio": 0.5}),
    pruning.overlap: ((SCORES, SCORES[::-1]), {"ratio": 0.5}),
    pruning.spearman: ((SCORES, SCORES[::-1]), {}),
    pruning.kendall: ((SCORES, SCORES[::-1]), {}),
    pruning.ks_normal: ((SCORES,), {}),
    pruning.weight_tests.ks_distance: ((SCORES,), {}),
    pruning.weight_tests.ks_bound: ((SCORES,), {}),
    pruning.weight_tests.fit_generalized_gaussian: ((SCORES,), {}),
    pruning.weight_tests.ks_equivalence: ((SCORES,), {"margin": 0.9}),
    pruning.weight_tests.filter_stds: ((X,), {}),
    pruning.std_homogeneity: ((X,), {}),
    pruning.weight_tests.std_equivalence: ((X,), {"margin": 0.5}),
    pruning.mean_equivalence: ((SCORES,), {"margin": 0.5}),
    pruning.weight_tests.symmetry: ((SCORES,), {}),
    pruning.weight_tests.holm: ((np.linspace(0.01, 0.3, 5),), {}),
    pruning.weight_tests.covariance: ((X,), {}),
    pruning.weight_tests.covariance_report: ((X,), {}),
    pruning.ranking.similarity: ((dict.fromkeys(pruning.CRITERIA, SCORES),), {"ratio": 0.5}),
    pruning.ranking.spearman_z_score: ((X[0], X), {}),
    pruning.gaussian.half_normal_moment: ((np.float64(2.0), np.float64(1.5)), {}),
    pruning.gaussian.chi_moment: ((np.float64(2.0), np.float64(9.0), np.float64(1.5)), {}),
    pruning.gaussian.chi_variance: ((np.float64(2.0), np.float64(9.0)), {}),
    pruning.l1_l2_correlation: ((np.float64(9.0),), {}),
    pruning.gaussian.fit_filter_model: ((X,), {}),
    pruning.gaussian.normal_kendall: ((np.float64(0.3),), {}),
    pruning.gaussian.normal_overlap: ((np.float64(0.3),), {"ratio": 0.4}),
    pruning.gaussian.normal_spearman: ((np.float64(0.3), np.float64(9.0)), {}),
    pruning.gaussian.scaled_l1_l2_correlation: (
        (np.float64(9.0),),
        {"shape": 1.5, "spread": 0.2},
    ),
    pruning.gaussian.expected_distance: ((np.float64(3.0), np.float64(2.0), np.float64(9.0)), {}),
    geometry.gram: ((X,), {}),
    geometry.angles: ((X,), {}),
    geometry.distances: ((X,), {}),
    geometry.filter_geometry: ((X,), {}),
    geometry.numerical_rank: ((X,), {}),
    geometry.effective_rank: ((X,), {}),
    geometry.stable_rank: ((X,), {}),
    geometry.isometry_gap: ((GRAM[:3, :3],), {}),
    geometry.orthogonality_gap: ((GRAM,), {}),
    geometry.arccosine_kernel: ((GRAM,), {}),
    geometry.mean_field_step: ((GRAM,), {}),
    geometry.mean_field.rescale_step: ((GRAM,), {}),
    geometry.mean_field.rescale_rms_step: ((GRAM,), {}),
    geometry.mean_field.standardize_step: ((GRAM,), {}),
    geometry.mean_field.cosine_step: ((GRAM / 100,), {}),
    geometry.mean_field.recenter_gram: ((GRAM,), {}),
    geometry.mean_field.rescale_gram: ((GRAM,), {}),
    geometry.mean_field.rms_norm_gram: ((GRAM,), {}),
    geometry.mean_field.rms_cosine_step: ((abs(GRAM) / 100,), {}),
    geometry.odd_point: ((GRAM,), {}),
    geometry.is_odd: ((GRAM,), {}),
    geometry.is_invariant: ((GRAM,), {}),
    geometry.odd_points.next_layer: ((X,), {}),
    geometry.odd_points.expected_entries: ((X,), {"width": 3}),
    geometry.tree.step: ((X,), {}),
    geometry.tree.neurons: ((X[:4],), {"depth": 2}),
    geometry.tree_gram: ((X[:4, 0],), {"depth": 3}),
    geometry.tree.depth_bound: ((X[:, 0],), {}),
    geometry.tree.limit_ratio: ((X[:4, 0],), {"depth": 3}),
    geometry.cell_volumes_2d: ((X[:, :2],), {}),
    geometry.cells.cell_volumes_3d: ((X[:, :3],), {}),
    geometry.gamma_2d: ((X[:, :2],), {}),
    geometry.cells.gamma_3d: ((X[:, :3],), {}),
    geometry.ranks.full_rank_reachable: ((X,), {}),
    geometry.ranks.full_rank_probability: ((X[:3, :2], X[3:5, 2:]), {}),
}
# Functions of Python numbers, of a key, or of other functions: tested on their own.
OTHERS = {
    jaxnorm.shift.emd,
    jaxnorm.shift.emd_critic,
    jaxnorm.shift.emd_lower_bound,
    jaxnorm.shift.emd_sliced,
    jaxnorm.shift.interpolation_counterexample,
    jaxnorm.shift.layer_shift,
    jaxnorm.shift.mean_projection,
    jaxnorm.shift.stream_moments,
    jaxnorm.shift.transport_plan,
    pruning.gaussian.amoroso_moment,
    pruning.weight_tests.anderson_darling,
    pruning.ranking.chance_overlap,
    pruning.channels.channel_scores,
    pruning.channels.check_program,
    pruning.cost,
    pruning.coupled_channels,
    pruning.schedules.cubic,
    pruning.channels.excluding,
    pruning.gaussian.expected_overlap,
    pruning.expected_spearman,
    pruning.channels.fixed_channels,
    pruning.channels.fold_constants,
    pruning.channels.fold_batch_norms,
    pruning.channels.compiled_bytes,
    pruning.channels.compiled_cycles,
    pruning.channels.compiled_flops,
    pruning.channels.cost_at,
    pruning.channels.milliseconds,
    pruning.channels.select_within,
    pruning.widths_for,
    pruning.ranking.gaussian_similarity,
    pruning.schedules.geometric,
    pruning.channels.select_globally,
    pruning.schedules.iterative,
    pruning.l1_l2_ratio_variance,
    pruning.gaussian.l1_l2_ratio_variance_limit,
    pruning.channels.select_layerwise,
    pruning.channels.least_squares,
    pruning.channels.rescale,
    pruning.channels.clusters,
    pruning.channels.merge_channels,
    pruning.channels.reconstruction_scores,
    pruning.channels.mean_scores,
    pruning.channels.output_error,
    pruning.channels.sensitivity,
    pruning.channels.swap_channels,
    pruning.nnx.evaluation,
    pruning.nnx.load_pruned,
    pruning.nnx.prune,
    pruning.channels.transport,
    pruning.lilliefors,
    pruning.schedules.linear,
    pruning.channels.load_pruned,
    pruning.mask_channels,
    pruning.gaussian.norm_sum_ratio_variance,
    pruning.gaussian.norm_sum_ratio_variance_limit,
    pruning.ranking.permutation_p_value,
    pruning.prune,
    pruning.channels.taylor_scores,
    pruning.channels.wanda_scores,
    pruning.weight_tests.ks_generalized_gaussian,
    pruning.weights.save,
    pruning.weights.restore,
    pruning.remove_channels,
    pruning.channels.resized,
    pruning.channels.save_pruned,
    pruning.weights.load,
    pruning.channels.widths,
    geometry.odd_points.cluster_growth,
    geometry.odd_points.cluster_spread,
    geometry.odd_points.odd_stability,
    geometry.odd_points.spread_distribution,
    geometry.odd_points.symmetric_stability,
    geometry.tree.end_bounds,
    geometry.odd_points.escape_ratio,
    geometry.odd_points.escape_step,
    geometry.mean_field.activation_step,
    geometry.mean_field.cubic_term,
    geometry.mean_field.expected_norm_factor,
    geometry.mean_field.fixed_point,
    geometry.mean_field.kernel_map,
    geometry.mean_field.layer_norm_map,
    geometry.mean_field.mixed_map,
    geometry.filters.gaussian_filter_geometry,
    geometry.networks.hull_vertices,
    geometry.invariant_representation,
    geometry.ranks.mean_rows_bound,
    geometry.monte_carlo,
    geometry.sampling.monte_carlo_moments,
    geometry.networks.neuron_per_point,
    geometry.filters.norm_envelope,
    geometry.cells.number_of_cells,
    geometry.odd_points.odd_state,
    geometry.networks.point_initializers,
    geometry.random_network,
    geometry.ranks.rank_tail,
    geometry.rank_tail_bound,
    geometry.odd_points.recentred_angle,
    geometry.mean_field.rms_angle,
    geometry.ranks.rows_needed,
    geometry.cells.sampled_cells,
    geometry.tree.limits,
    geometry.filters.welch_bound,
}
KEYWORDS = {
    *("axis", "eps", "where", "axis_name", "ratio", "batch_size"),
    *("r_max", "d_max"),
    *("groups", "pixels", "projections", "radius", "steps"),
}
# Functions that order or count return another dtype than that of their input.
DTYPE_CHANGES = {
    pruning.order,
    pruning.ranking.lowest,
    pruning.overlap,
    pruning.spearman,
    pruning.kendall,
    pruning.ranking.similarity,
}
named = pytest.mark.parametrize("function", NUMERICAL, ids=lambda f: f"{f.__module__}.{f.__name__}")


def example(function, dtype="float64"):
    arguments, options = NUMERICAL[function]
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), arguments), partial(function, **options)


@cache
def compiled(function):
    return jax.jit(example(function)[1])


def assert_same(found, expected):
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), found, expected)


def name(function: Any) -> str:
    return function.__name__


def public_functions():
    return {
        value
        for package in PACKAGES
        for name, value in vars(package).items()
        if isinstance(inspect.unwrap(value), types.FunctionType)
        and not name.startswith("_")
        and value.__module__.startswith(package.__name__)
    }


def test_the_table_holds_every_public_function():
    assert public_functions() == set(NUMERICAL) | OTHERS


@named
def test_jit_changes_nothing(function):
    """XLA's program has the result that NumPy has of every operation by itself."""
    arguments, _ = example(function)
    program = compiled(function)
    assert_same(program(*arguments), evaluated(program, *arguments))


@pytest.mark.slow
@named
def test_operations_by_themselves_have_the_same_result(function):
    arguments, call = example(function)
    assert_same(call(*arguments), compiled(function)(*arguments))


@named
def test_vmap_changes_nothing(function):
    arguments, call = example(function)
    arguments = jax.tree.map(np.asarray, arguments)
    twice = jax.tree.map(lambda x: np.stack([x, 2 * x]), arguments)
    batched = jax.tree.map(np.asarray, jax.jit(jax.vmap(call))(*twice))
    for i in range(2):
        single = compiled(function)(*jax.tree.map(lambda x, i=i: x[i], twice))
        assert_same(jax.tree.map(lambda y, i=i: y[i], batched), single)


@named
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_is_kept(function, dtype):
    if function in DTYPE_CHANGES:
        pytest.skip("its result is an order, a count or a correlation of ranks")
    arguments, call = example(function, dtype)
    for leaf in jax.tree.leaves(jax.eval_shape(call, *arguments)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert leaf.dtype == dtype


def of_a_mesh(function):
    """Whether tests of meshes compile its gradient already, and find it finite."""
    module, alone = function.__module__, (geometry.tree, pruning.gaussian)
    return module.startswith(("jaxnorm.shift", "pruning", "geometry")) and not module.startswith(
        tuple(package.__name__ for package in alone)
    )


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, marks=[pytest.mark.slow] if of_a_mesh(f) else []) for f in NUMERICAL],
    ids=lambda f: f"{f.__module__}.{f.__name__}",
)
def test_gradients_are_finite(function):
    arguments, call = example(function)

    def total(*arguments):
        leaves = jax.tree.leaves(call(*arguments))
        return sum(jnp.sum(y) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    found = jax.tree.leaves(jax.eval_shape(call, *arguments))
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in found):
        pytest.skip("its result is an order, a count or a mask")
    gradient = evaluated(jax.grad(total, tuple(range(len(arguments)))), *arguments)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("function", sorted(public_functions(), key=name), ids=name)
def test_it_is_documented_and_its_options_are_keywords(function):
    assert inspect.getdoc(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in KEYWORDS and "ChannelGroup" not in str(parameter.annotation):
            assert parameter.kind is parameter.KEYWORD_ONLY
