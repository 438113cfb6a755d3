"""Odd points: samples that a recentred ReLU network drives away from all other samples."""

from geometry.odd_points._invariance import NextLayer as NextLayer
from geometry.odd_points._invariance import expected_entries as expected_entries
from geometry.odd_points._invariance import is_invariant as is_invariant
from geometry.odd_points._invariance import next_layer as next_layer
from geometry.odd_points._odd_point import OddPoint as OddPoint
from geometry.odd_points._odd_point import invariant_representation as invariant_representation
from geometry.odd_points._odd_point import is_odd as is_odd
from geometry.odd_points._odd_point import odd_point as odd_point
from geometry.odd_points._odd_state import OddState as OddState
from geometry.odd_points._odd_state import cluster_growth as cluster_growth
from geometry.odd_points._odd_state import escape_ratio as escape_ratio
from geometry.odd_points._odd_state import escape_step as escape_step
from geometry.odd_points._odd_state import odd_state as odd_state
from geometry.odd_points._odd_state import recentred_angle as recentred_angle
from geometry.odd_points._stability import SpreadDistribution as SpreadDistribution
from geometry.odd_points._stability import Stability as Stability
from geometry.odd_points._stability import cluster_spread as cluster_spread
from geometry.odd_points._stability import odd_stability as odd_stability
from geometry.odd_points._stability import spread_distribution as spread_distribution
from geometry.odd_points._stability import symmetric_stability as symmetric_stability
