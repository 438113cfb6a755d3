"""Claims of the unitization paper (Huang and Yu), one module a section."""

from geometry.claims._types import Claim
from geometry.claims.unitization import (
    algorithms,
    bounds,
    distances,
    experiments,
    interpolation,
    transforms,
)
from geometry.claims.unitization.bounds import distance_bounds as distance_bounds

CLAIMS: tuple[Claim, ...] = (
    *distances.CLAIMS,
    *bounds.CLAIMS,
    *transforms.CLAIMS,
    *interpolation.CLAIMS,
    *algorithms.CLAIMS,
    *experiments.CLAIMS,
)
