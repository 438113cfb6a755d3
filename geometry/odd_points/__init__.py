"""Odd points are samples that a recentered ReLU network drives away from all other samples."""

from geometry.odd_points._invariance import (
    NextLayer as NextLayer,
    expected_entries as expected_entries,
    is_invariant as is_invariant,
    next_layer as next_layer,
)
from geometry.odd_points._odd_point import (
    OddPoint as OddPoint,
    invariant_representation as invariant_representation,
    is_odd as is_odd,
    odd_point as odd_point,
)
from geometry.odd_points._odd_state import (
    OddState as OddState,
    cluster_growth as cluster_growth,
    escape_ratio as escape_ratio,
    escape_step as escape_step,
    odd_state as odd_state,
    recentred_angle as recentred_angle,
)
from geometry.odd_points._stability import (
    SpreadDistribution as SpreadDistribution,
    Stability as Stability,
    cluster_spread as cluster_spread,
    odd_stability as odd_stability,
    spread_distribution as spread_distribution,
    symmetric_stability as symmetric_stability,
)
