"""Ranks of a batch, and the number of random ReLU neurons that give full rank."""

from geometry.ranks._batch import (
    effective_rank as effective_rank,
    isometry_gap as isometry_gap,
    numerical_rank as numerical_rank,
    orthogonality_gap as orthogonality_gap,
    stable_rank as stable_rank,
)
from geometry.ranks._growth import (
    full_rank_probability as full_rank_probability,
    full_rank_reachable as full_rank_reachable,
    mean_rows_bound as mean_rows_bound,
    rank_tail as rank_tail,
    rank_tail_bound as rank_tail_bound,
    rows_needed as rows_needed,
)
