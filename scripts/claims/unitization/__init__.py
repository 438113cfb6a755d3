"""Claims of the unitization paper (Huang and Yu); modules follow the paper's sections."""

from claims.sections import claims_in
from claims.unitization import (
    algorithms,
    bounded,
    distances,
    experiments,
    interpolation,
    introduction,
    lower_bounds,
    tables,
    unit_vectors,
    upper_bounds,
)
from claims.unitization.upper_bounds import distance_bounds as distance_bounds

CLAIMS = claims_in(
    introduction,
    distances,
    upper_bounds,
    lower_bounds,
    unit_vectors,
    bounded,
    interpolation,
    algorithms,
    experiments,
    tables,
)
