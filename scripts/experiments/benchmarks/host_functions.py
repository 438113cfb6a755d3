"""Public functions that run on the host, and so are no programs for a device."""

from collections.abc import Callable

import geometry
import pruning
from jaxnorm import shift

# By the reason.
HOST_ONLY: dict[str, tuple[Callable, ...]] = {
    "exact optimal transport by SciPy": (shift.emd, shift.layer_shift),
    "needs ott-jax, which is no dependency": (shift.emd_sinkhorn,),
    "a loop over batches, each a program of the caller's": (shift.stream_moments,),
    "rounds until quantiles are bracketed, each a program": (geometry.monte_carlo_quantiles,),
    "convex hulls by SciPy, or their constructions": (
        geometry.hull_vertices,
        geometry.neuron_per_point,
        geometry.point_initializers,
    ),
    "a function of Python scalars": (
        shift.interpolation_counterexample,
        shift.mean_projection,
        pruning.chance_overlap,
        pruning.cubic,
        pruning.geometric,
        pruning.iterative,
        pruning.l1_l2_ratio_variance,
        pruning.l1_l2_ratio_variance_limit,
        pruning.linear,
        pruning.norm_sum_ratio_variance,
        pruning.norm_sum_ratio_variance_limit,
        pruning.one_shot,
        geometry.cluster_growth,
        geometry.end_bounds,
        geometry.escape_ratio,
        geometry.escape_step,
        geometry.expected_norm_factor,
        geometry.gaussian_filter_geometry,
        geometry.invariant_representation,
        geometry.mean_rows_bound,
        geometry.norm_envelope,
        geometry.number_of_cells,
        geometry.odd_state,
        geometry.printed_end_bounds,
        geometry.rank_tail,
        geometry.rank_tail_bound,
        geometry.recentred_angle,
        geometry.rms_angle,
        geometry.welch_bound,
    ),
    "parameter trees, traced programs and files": (
        pruning.channel_scores,
        pruning.cost,
        pruning.coupled_channels,
        pruning.excluding,
        pruning.fixed_channels,
        pruning.fold_constants,
        pruning.globally,
        pruning.layerwise,
        pruning.load_pruned,
        pruning.mask_channels,
        pruning.prune,
        pruning.remove_channels,
        pruning.save_pruned,
        pruning.weights.load,
        pruning.widths,
    ),
}
