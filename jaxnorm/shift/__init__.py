"""Measures internal covariate shift by earth mover distances between a layer's outputs.

The distance is W₁ with Euclidean cost, Huang and Yu, Eq. 2. It is the smallest mean displacement
that moves one set of outputs to the other set. W₁ has the unit of the outputs. Samples are the rows
of an array.

On a mesh with Auto or Explicit axes, samples may be sharded along any axis. Functions that sort
samples or train on samples return results that are replicated on all devices. `emd_critic` and
`emd_lower_bound` gather the samples on every device.
"""

from jaxnorm.shift._critic import emd_critic as emd_critic
from jaxnorm.shift._emd import Sliced as Sliced
from jaxnorm.shift._emd import emd as emd
from jaxnorm.shift._emd import emd_sliced as emd_sliced
from jaxnorm.shift._emd import mean_projection as mean_projection
from jaxnorm.shift._emd import transport_plan as transport_plan
from jaxnorm.shift._emd_1d import emd_1d as emd_1d
from jaxnorm.shift._layer_bounds import LayerBounds as LayerBounds
from jaxnorm.shift._layer_bounds import certified_upper_bound as certified_upper_bound
from jaxnorm.shift._layer_bounds import derf_bounds as derf_bounds
from jaxnorm.shift._layer_bounds import dyt_bounds as dyt_bounds
from jaxnorm.shift._layer_bounds import layer_norm_bounds as layer_norm_bounds
from jaxnorm.shift._layer_bounds import rms_norm_bounds as rms_norm_bounds
from jaxnorm.shift._layer_bounds import unitized_bounds as unitized_bounds
from jaxnorm.shift._lower_bound import emd_lower_bound as emd_lower_bound
from jaxnorm.shift._moment_bounds import clipped_power as clipped_power
from jaxnorm.shift._moment_bounds import mean_lower_bound as mean_lower_bound
from jaxnorm.shift._moment_bounds import moment_lower_bound as moment_lower_bound
from jaxnorm.shift._moment_bounds import moment_upper_bound as moment_upper_bound
from jaxnorm.shift._moment_bounds import normalized_lower_bound as normalized_lower_bound
from jaxnorm.shift._moment_bounds import normalized_upper_bound as normalized_upper_bound
from jaxnorm.shift._moment_bounds import paired_upper_bound as paired_upper_bound
from jaxnorm.shift._moment_bounds import sharp_moment_upper_bound as sharp_moment_upper_bound
from jaxnorm.shift._tracker import LayerShift as LayerShift
from jaxnorm.shift._tracker import Tracker as Tracker
from jaxnorm.shift._tracker import layer_shift as layer_shift
from jaxnorm.shift._tracker import stream_moments as stream_moments
from jaxnorm.shift._unitized_bounds import interpolated_upper_bound as interpolated_upper_bound
from jaxnorm.shift._unitized_bounds import (
    interpolation_counterexample as interpolation_counterexample,
)
from jaxnorm.shift._unitized_bounds import sharp_unitized_upper_bound as sharp_unitized_upper_bound
from jaxnorm.shift._unitized_bounds import unitized_upper_bound as unitized_upper_bound
