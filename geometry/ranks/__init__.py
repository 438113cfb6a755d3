"""Ranks of a batch, and the number of random ReLU neurons that give full rank."""

from geometry.ranks._batch import effective_rank as effective_rank
from geometry.ranks._batch import isometry_gap as isometry_gap
from geometry.ranks._batch import numerical_rank as numerical_rank
from geometry.ranks._batch import orthogonality_gap as orthogonality_gap
from geometry.ranks._batch import stable_rank as stable_rank
from geometry.ranks._growth import full_rank_probability as full_rank_probability
from geometry.ranks._growth import full_rank_reachable as full_rank_reachable
from geometry.ranks._growth import mean_rows_bound as mean_rows_bound
from geometry.ranks._growth import rank_tail as rank_tail
from geometry.ranks._growth import rank_tail_bound as rank_tail_bound
from geometry.ranks._growth import rows_needed as rows_needed
