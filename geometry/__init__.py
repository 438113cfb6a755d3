"""Geometry of representations: what random layers do to the angles and norms of a batch.

Samples are rows, angles are in radians. Functions are pure and leave `jit`, `vmap` and `grad` to
the caller. `geometry.claims` has claims of three papers as data, and checks them by Monte Carlo.
"""

from geometry import claims as claims
from geometry._angles import angles as angles
from geometry._angles import distances as distances
from geometry._angles import gram as gram
from geometry._cells import cell_volumes_2d as cell_volumes_2d
from geometry._cells import gamma_2d as gamma_2d
from geometry._invariance import NextLayer as NextLayer
from geometry._invariance import expected_entries as expected_entries
from geometry._invariance import is_invariant as is_invariant
from geometry._invariance import theorem_14 as theorem_14
from geometry._kernel import arccosine_kernel as arccosine_kernel
from geometry._kernel import cosine_step as cosine_step
from geometry._kernel import expected_norm_factor as expected_norm_factor
from geometry._kernel import mean_field_step as mean_field_step
from geometry._monte_carlo import Estimate as Estimate
from geometry._monte_carlo import monte_carlo as monte_carlo
from geometry._odd_point import OddPoint as OddPoint
from geometry._odd_point import invariant_representation as invariant_representation
from geometry._odd_point import is_odd as is_odd
from geometry._odd_point import odd_point as odd_point
from geometry._odd_state import OddState as OddState
from geometry._odd_state import cluster_growth as cluster_growth
from geometry._odd_state import escape_ratio as escape_ratio
from geometry._odd_state import escape_step as escape_step
from geometry._odd_state import odd_state as odd_state
from geometry._odd_state import recentred_angle as recentred_angle
from geometry._random_network import RandomNetwork as RandomNetwork
from geometry._random_network import random_network as random_network
from geometry._ranks import effective_rank as effective_rank
from geometry._ranks import isometry_gap as isometry_gap
from geometry._ranks import numerical_rank as numerical_rank
from geometry._ranks import orthogonality_gap as orthogonality_gap
from geometry._ranks import stable_rank as stable_rank
from geometry._rescaled_kernel import mean_field_rescale as mean_field_rescale
from geometry._rescaled_kernel import mean_field_rescale_rms as mean_field_rescale_rms
from geometry._rescaled_kernel import mean_field_standardize as mean_field_standardize
from geometry._rescaled_kernel import rms_angle as rms_angle
from geometry._rescaled_kernel import rms_cosine_step as rms_cosine_step
from geometry._tree import TreeGram as TreeGram
from geometry._tree import negative as negative
from geometry._tree import positive as positive
from geometry._tree import tree as tree
from geometry._tree import tree_gram as tree_gram
from geometry._tree import tree_step as tree_step
from geometry._tree_limits import EndBounds as EndBounds
from geometry._tree_limits import TreeLimits as TreeLimits
from geometry._tree_limits import end_bounds as end_bounds
from geometry._tree_limits import printed_end_bounds as printed_end_bounds
from geometry._tree_limits import tree_depth_bound as tree_depth_bound
from geometry._tree_limits import tree_limit_ratio as tree_limit_ratio
from geometry._tree_limits import tree_limits as tree_limits
