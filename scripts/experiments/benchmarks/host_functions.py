"""The public functions that run on the host and are therefore not compiled for a device."""

from collections.abc import Callable, Iterator
from inspect import isfunction
from types import ModuleType

import geometry
import pruning
from jaxnorm import shift


def functions(module: ModuleType) -> Iterator[Callable]:
    """The public functions that a module defines."""
    values = (value for name, value in vars(module).items() if not name.startswith("_"))
    return (f for f in values if isfunction(f) and f.__module__.startswith(module.__name__))


# The functions that run on the host, grouped by the reason why they do not run on a device.
HOST_ONLY: dict[str, tuple[Callable, ...]] = {
    "exact optimal transport by SciPy": (shift.emd, shift.transport_plan, shift.layer_shift),
    "a loop over batches, which calls the caller's program": (shift.stream_moments,),
    "convex hulls by SciPy, or their constructions": (
        geometry.networks.hull_vertices,
        geometry.networks.neuron_per_point,
        geometry.networks.point_initializers,
    ),
    "a function of Python scalars": (
        shift.interpolation_counterexample,
        shift.mean_projection,
        pruning.ranking.chance_overlap,
        pruning.l1_l2_ratio_variance,
        pruning.gaussian.l1_l2_ratio_variance_limit,
        *functions(pruning.schedules),
        pruning.gaussian.norm_sum_ratio_variance,
        pruning.gaussian.norm_sum_ratio_variance_limit,
        geometry.odd_points.cluster_growth,
        geometry.tree.end_bounds,
        geometry.odd_points.escape_ratio,
        geometry.odd_points.escape_step,
        geometry.mean_field.expected_norm_factor,
        geometry.filters.gaussian_filter_geometry,
        geometry.invariant_representation,
        geometry.ranks.mean_rows_bound,
        geometry.filters.norm_envelope,
        geometry.cells.number_of_cells,
        geometry.odd_points.odd_state,
        geometry.ranks.rank_tail,
        geometry.rank_tail_bound,
        geometry.odd_points.recentred_angle,
        geometry.mean_field.rms_angle,
        geometry.filters.welch_bound,
    ),
    "a map of an activation, or what follows from it": (
        geometry.mean_field.kernel_map,
        geometry.mean_field.mixed_map,
        geometry.mean_field.layer_norm_map,
        geometry.mean_field.fixed_point,
        geometry.mean_field.cubic_term,
        geometry.odd_points.odd_stability,
        geometry.odd_points.symmetric_stability,
        geometry.odd_points.cluster_spread,
        geometry.odd_points.spread_distribution,
    ),
    "parameter trees, traced programs and files": (
        *functions(pruning.channels),
        *functions(pruning.nnx),
        pruning.weights.load,
        pruning.weights.restore,
        pruning.weights.save,
    ),
}
