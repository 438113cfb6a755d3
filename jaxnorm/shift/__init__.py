"""Measures internal covariate shift by earth mover distances between a layer's outputs.

The distance is W₁ with Euclidean cost, Huang and Yu, Equation 2: the smallest mean displacement
that moves one set of outputs to the other set. W₁ has the unit of the outputs. Samples are the rows
of an array.

On a mesh with Auto or Explicit axes, samples may be sharded along any axis. Functions that sort
samples or train on samples return results that are replicated on all devices. `emd_critic` and
`emd_lower_bound` gather the samples on every device.
"""

from jaxnorm.shift._critic import emd_critic as emd_critic
from jaxnorm.shift._emd import (
    Sliced as Sliced,
    emd as emd,
    emd_sliced as emd_sliced,
    mean_projection as mean_projection,
    transport_plan as transport_plan,
)
from jaxnorm.shift._emd_1d import emd_1d as emd_1d
from jaxnorm.shift._layer_bounds import (
    LayerBounds as LayerBounds,
    certified_upper_bound as certified_upper_bound,
    derf_bounds as derf_bounds,
    dyt_bounds as dyt_bounds,
    layer_norm_bounds as layer_norm_bounds,
    rms_norm_bounds as rms_norm_bounds,
    unitized_bounds as unitized_bounds,
)
from jaxnorm.shift._lower_bound import emd_lower_bound as emd_lower_bound
from jaxnorm.shift._moment_bounds import (
    clipped_power as clipped_power,
    mean_lower_bound as mean_lower_bound,
    moment_lower_bound as moment_lower_bound,
    moment_upper_bound as moment_upper_bound,
    normalized_lower_bound as normalized_lower_bound,
    normalized_upper_bound as normalized_upper_bound,
    paired_upper_bound as paired_upper_bound,
    sharp_moment_upper_bound as sharp_moment_upper_bound,
)
from jaxnorm.shift._tracker import (
    LayerShift as LayerShift,
    Tracker as Tracker,
    layer_shift as layer_shift,
    stream_moments as stream_moments,
)
from jaxnorm.shift._unitized_bounds import (
    interpolated_upper_bound as interpolated_upper_bound,
    interpolation_counterexample as interpolation_counterexample,
    sharp_unitized_upper_bound as sharp_unitized_upper_bound,
    unitized_upper_bound as unitized_upper_bound,
)
