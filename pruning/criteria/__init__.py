"""Scores the filters of a layer by criteria, and computes the filters' geometric median.

`CRITERIA` has the four criteria of Huang et al. (2020), Table 2. Filters are the rows of a matrix,
`(filters, dims)`. A criterion gives each filter one score, and the filters with the smallest scores
are pruned first. `filter_matrix` makes the matrix of filters from a layer's kernel.
"""

from pruning.criteria._criteria import (
    CRITERIA as CRITERIA,
    fermat as fermat,
    filter_matrix as filter_matrix,
    gm as gm,
    l1_norm as l1_norm,
    l2_norm as l2_norm,
    repr_score as repr_score,
    scores as scores,
)
from pruning.criteria._median import (
    geometric_median as geometric_median,
    optimality_gap as optimality_gap,
)

__all__ = [
    "CRITERIA",
    "fermat",
    "filter_matrix",
    "geometric_median",
    "gm",
    "l1_norm",
    "l2_norm",
    "optimality_gap",
    "repr_score",
    "scores",
]
