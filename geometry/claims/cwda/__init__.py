"""Claims of the pruning paper, on the convolution-weight-distribution assumption (CWDA)."""

from geometry.claims._types import Claim
from geometry.claims.cwda import (
    accuracies,
    assumption,
    criteria,
    geometry_of_filters,
    lemmas,
    moments,
    points,
    ratios,
    sums,
)

CLAIMS: tuple[Claim, ...] = (
    *criteria.CLAIMS,
    *assumption.CLAIMS,
    *ratios.CLAIMS,
    *sums.CLAIMS,
    *accuracies.CLAIMS,
    *geometry_of_filters.CLAIMS,
    *moments.CLAIMS,
    *lemmas.CLAIMS,
    *points.CLAIMS,
)
