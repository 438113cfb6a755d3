"""Claims of the unitization paper (Huang and Yu), one module a section."""

from geometry.claims._types import claims_in
from geometry.claims.unitization import (
    algorithms,
    bounds,
    distances,
    experiments,
    interpolation,
    transforms,
)
from geometry.claims.unitization.bounds import distance_bounds as distance_bounds

CLAIMS = claims_in(distances, bounds, transforms, interpolation, algorithms, experiments)
