"""All public functions of the three packages at realistic sizes, to be compiled ahead of time.

Functions that run only on the host are left out (`benchmarks.host_functions`). Some arrays have the
size of a layer's outputs (8192 vectors of 4096 features), or of VGG-16's largest kernels (512
filters of 4608 weights). Other arrays have the sizes of the papers' experiments in geometry. All
arrays are float32.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jax.sharding import Sharding
from jaxtyping import Array, Float, Key

import geometry
import jaxnorm
import pruning
from experiments.compiled.compile_only import measure, place
from jaxnorm import shift


class Case(NamedTuple):
    """A public function, and the program and arguments with which it is compiled and measured."""

    function: Callable
    program: Callable
    arguments: tuple[Any, ...]  # trees whose leaves are shapes
    note: str = ""

    @property
    def name(self) -> str:
        return qualified_name(self.function)

    @property
    def size(self) -> str:
        """A text with the shapes of the float32 arguments, and the note."""
        leaves = [leaf for leaf in jax.tree.leaves(self.arguments) if leaf.dtype == jnp.float32]
        counts = Counter("×".join(map(str, leaf.shape)) or "scalar" for leaf in leaves)
        shapes = [f"{count} of {text}" if count > 1 else text for text, count in counts.items()]
        return "; ".join(filter(None, [", ".join(shapes), self.note]))


def qualified_name(function: Callable) -> str:
    """A function's full name, such as `pruning.criteria.scores`, without private modules."""
    return f"{function.__module__.partition('._')[0]}.{function.__name__}"


def case(function: Callable, *arguments: Any, **options: Any) -> Case:
    note = ", ".join(f"{name} {value}" for name, value in options.items())
    return Case(function, partial(function, **options), arguments, note)


def function_rows(sharding: Sharding) -> Iterator[dict[str, Any]]:
    """Yield a row of measurements for each public function, compiled for one device.

    If the compiler fails, the row has the first line of the error instead of measurements.
    """
    for case in cases():
        row = {"function": case.name, "size": case.size}
        try:
            measured = measure(case.program, *place(case.arguments, sharding))
        except Exception as error:  # any exception of JAX or of a compiler is recorded as a result
            lines = str(error).splitlines() or [""]
            yield row | {"error": f"{type(error).__name__}: {lines[0]}"}
            continue
        yield row | {
            "megabytes": measured.bytes / 1e6,
            "ratio_to_arguments_and_results": measured.bytes
            / max(measured.arguments_and_results, 1),
            "kernels": measured.kernels,
            "notable": dict(measured.notable),
            "unknown_loops": measured.unknown_loops,
            "seconds": measured.seconds,
        }


def f32(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, jnp.float32)


def random_key() -> ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key, 0)


def cases() -> list[Case]:
    return [*normalization(), *covariate_shift(), *filters(), *filter_tests(), *representations()]


def normalization() -> list[Case]:
    x, images, c, scalar = f32(8192, 4096), f32(256, 56, 56, 256), f32(256), f32()
    statistics = jax.eval_shape(jaxnorm.batch_statistics, images)
    moments = jax.eval_shape(jaxnorm.moments, x)
    feature_functions = (
        jaxnorm.recenter,
        jaxnorm.rescale,
        jaxnorm.rescale_rms,
        jaxnorm.standardize,
        jaxnorm.unit_vector,
        jaxnorm.moments,
        jaxnorm.batch_statistics,
    )
    return [
        *(case(function, x) for function in feature_functions),
        case(jaxnorm.unitize, x, f32(4096)),
        case(jaxnorm.unitize_bounded, x, f32(4096)),
        case(jaxnorm.batch_norm, images, c, c),
        case(jaxnorm.unitized_batch_norm, images, c, c, c),
        case(jaxnorm.batch_renorm, images, c, c),
        case(jaxnorm.dyt, x, scalar, f32(4096), f32(4096)),
        case(jaxnorm.derf, x, scalar, scalar, f32(4096), f32(4096)),
        case(jaxnorm.merge_statistics, statistics, statistics),
        case(jaxnorm.merge_moments, moments, moments, counts=(8192, 8192)),
        case(jaxnorm.bessel, scalar),
        case(jaxnorm.interpolated, f32(1, 4096), f32(8192, 1)),
        case(jaxnorm.bounded, f32(1, 4096), f32(8192, 1)),
    ]


def covariate_shift() -> list[Case]:
    key, x, d = random_key(), f32(4096, 512), f32(512)
    return [
        case(shift.emd_1d, x, x),
        case(shift.emd_1d, x, f32(3000, 512)),
        Case(shift.emd_1d, weighted_emd_1d, (x, x, f32(4096), f32(4096)), "weighted"),
        Case(shift.emd_1d, jax.grad(summed_emd_1d), (x, x), "gradient"),
        case(shift.emd_sliced, key, x, x),
        case(shift.emd_lower_bound, key, *4 * (x,)),
        case(shift.emd_critic, key, *4 * (f32(2000, 8, 8, 64),)),
        case(shift.clipped_power, x, radius=2.0),
        case(shift.mean_lower_bound, d, d),
        case(shift.moment_lower_bound, x, x, radius=2.0),
        case(shift.moment_upper_bound, d, d, d, d),
        case(shift.sharp_moment_upper_bound, d, d, d, d),
        case(shift.normalized_lower_bound, d, d, d, d, radius=2.0),
        case(shift.normalized_upper_bound, d, d, d, d),
        case(shift.paired_upper_bound, x, x),
        case(shift.unitized_upper_bound, d, x, x),
        case(shift.sharp_unitized_upper_bound, d, x, x),
        case(shift.interpolated_upper_bound, d, x, x),
        case(shift.layer_norm_bounds, d),
        case(shift.rms_norm_bounds, d),
        case(shift.dyt_bounds, d, d),
        case(shift.derf_bounds, d, d),
        case(shift.unitized_bounds, d, d),
        case(shift.certified_upper_bound, jax.eval_shape(shift.dyt_bounds, d, d), f32()),
    ]


def weighted_emd_1d(x: Array, y: Array, x_weights: Array, y_weights: Array) -> Array:
    return shift.emd_1d(x, y, x_weights=x_weights, y_weights=y_weights)


def summed_emd_1d(x: Array, y: Array) -> Array:
    return shift.emd_1d(x, y).sum()


def filters() -> list[Case]:
    key, w, scores, scalar = random_key(), f32(512, 4608), f32(512), f32()
    return [
        case(pruning.filter_matrix, f32(3, 3, 512, 512)),
        *(case(criterion, w) for criterion in pruning.CRITERIA.values()),
        case(pruning.geometric_median, w),
        case(pruning.criteria.optimality_gap, f32(4608), w),
        case(pruning.criteria.repr_score, w),
        case(pruning.criteria.scores, w),
        case(pruning.order, scores),
        case(pruning.ranking.lowest, scores, ratio=0.5),
        case(pruning.overlap, scores, scores, ratio=0.5),
        case(pruning.spearman, scores, scores),
        case(pruning.kendall, scores, scores),
        case(pruning.ranking.similarity, dict.fromkeys(pruning.CRITERIA, scores), ratio=0.5),
        case(
            pruning.ranking.gaussian_similarity,
            key,
            num_filters=512,
            dims=4608,
            ratio=0.5,
            samples=10,
        ),
        case(pruning.ranking.permutation_p_value, key, scores, scores),
        case(pruning.ranking.spearman_z_score, f32(6), f32(200, 6)),
        case(pruning.gaussian.half_normal_moment, scalar, scalar),
        case(pruning.gaussian.amoroso_moment, *4 * (scalar,), order=2),
        case(pruning.gaussian.chi_moment, scalar, scalar, scalar),
        case(pruning.gaussian.chi_variance, scalar, scalar),
        case(pruning.gaussian.expected_distance, scalar, scalar, scalar),
        case(pruning.expected_spearman, scalar, scalar, pair=("l1", "l2")),
        case(pruning.gaussian.expected_overlap, scalar, scalar, pair=("l1", "l2"), ratio=0.5),
        case(pruning.l1_l2_correlation, scalar),
        case(pruning.gaussian.scaled_l1_l2_correlation, scalar),
        case(pruning.gaussian.normal_spearman, scalar, scalar),
        case(pruning.gaussian.normal_kendall, scalar),
        case(pruning.gaussian.normal_overlap, scalar, ratio=0.5),
        case(pruning.gaussian.fit_filter_model, w),
    ]


def filter_tests() -> list[Case]:
    key, w, sample = random_key(), f32(512, 4608), f32(2**18)
    return [
        case(pruning.weight_tests.ks_distance, w),
        case(pruning.ks_normal, w),
        case(pruning.weight_tests.ks_bound, w),
        case(pruning.weight_tests.ks_equivalence, w, margin=0.05),
        case(pruning.lilliefors, key, sample, samples=99),
        case(pruning.weight_tests.anderson_darling, key, sample, samples=99),
        case(pruning.weight_tests.fit_generalized_gaussian, sample),
        case(pruning.weight_tests.ks_generalized_gaussian, key, sample, samples=99),
        case(pruning.weight_tests.filter_stds, w),
        case(pruning.std_homogeneity, w),
        case(pruning.weight_tests.std_equivalence, w, margin=0.1),
        case(pruning.mean_equivalence, w, margin=0.1),
        case(pruning.weight_tests.symmetry, w),
        case(pruning.weight_tests.holm, f32(512)),
        case(pruning.weight_tests.covariance, w),
        case(pruning.weight_tests.covariance_report, w),
    ]


def representations() -> list[Case]:
    key, x, gram, leaves = random_key(), f32(256, 1000), f32(256, 256), f32(64)
    return [
        *(case(function, x) for function in BATCH_FUNCTIONS),
        *(case(function, gram) for function in GRAM_FUNCTIONS),
        Case(geometry.mean_field.activation_step, tanh_step, (gram,), "tanh"),
        case(geometry.filter_geometry, f32(512, 4608)),
        case(geometry.odd_points.expected_entries, x, width=1000),
        case(geometry.tree.neurons, leaves, depth=10),
        case(geometry.tree_gram, leaves, depth=10_000),
        case(geometry.tree.limit_ratio, leaves),
        case(geometry.tree.depth_bound, leaves),
        Case(geometry.tree.limits, partial(geometry.tree.limits, 64), (f32(),), "n 64"),
        case(geometry.random_network, key, f32(64, 1000), depth=200, width=1000),
        *cells(),
        *estimates(),
    ]


def tanh_step(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return geometry.mean_field.activation_step(gram, jnp.tanh)


BATCH_FUNCTIONS = (
    geometry.gram,
    geometry.angles,
    geometry.distances,
    geometry.numerical_rank,
    geometry.effective_rank,
    geometry.stable_rank,
    geometry.odd_points.next_layer,
    geometry.ranks.full_rank_reachable,
    geometry.tree.step,
)
GRAM_FUNCTIONS = (
    geometry.isometry_gap,
    geometry.orthogonality_gap,
    geometry.arccosine_kernel,
    geometry.mean_field.cosine_step,
    geometry.mean_field.rms_cosine_step,
    geometry.mean_field_step,
    geometry.mean_field.recenter_gram,
    geometry.mean_field.rescale_gram,
    geometry.mean_field.rms_norm_gram,
    geometry.mean_field.rescale_step,
    geometry.mean_field.rescale_rms_step,
    geometry.mean_field.standardize_step,
    geometry.odd_point,
    geometry.is_odd,
    geometry.is_invariant,
)


def cells() -> list[Case]:
    key = random_key()
    return [
        case(geometry.cell_volumes_2d, f32(64, 2)),
        case(geometry.gamma_2d, f32(64, 2)),
        case(geometry.cells.cell_volumes_3d, f32(16, 3)),
        case(geometry.cells.gamma_3d, f32(16, 3)),
        case(geometry.cells.sampled_cells, key, f32(12, 8), samples=100_000),
        case(geometry.ranks.rows_needed, key, f32(12, 8)),
        case(geometry.ranks.full_rank_probability, f32(16, 2), f32(8, 2)),
    ]


def estimates() -> list[Case]:
    draws = {geometry.monte_carlo: max_of_100, geometry.sampling.monte_carlo_moments: max_of_100}
    programs = {f: partial(f, draw, samples=1_000_000) for f, draw in draws.items()}
    return [Case(f, run, (random_key(),), "samples 1000000") for f, run in programs.items()]


def max_of_100(key: Key[Array, ""]) -> Float[Array, ""]:
    return jax.random.normal(key, (100,)).max()
