"""Chooses filters by scores, and compares the similarity of two rankings with chance.

The scores of a layer are one vector. The filters with the smallest scores are pruned first.
"""

from pruning.ranking._ranking import PAIRS as PAIRS
from pruning.ranking._ranking import Similarity as Similarity
from pruning.ranking._ranking import chance_overlap as chance_overlap
from pruning.ranking._ranking import gaussian_similarity as gaussian_similarity
from pruning.ranking._ranking import kendall as kendall
from pruning.ranking._ranking import lowest as lowest
from pruning.ranking._ranking import order as order
from pruning.ranking._ranking import overlap as overlap
from pruning.ranking._ranking import permutation_p_value as permutation_p_value
from pruning.ranking._ranking import similarity as similarity
from pruning.ranking._ranking import spearman as spearman
from pruning.ranking._ranking import spearman_z_score as spearman_z_score

__all__ = [
    "PAIRS",
    "Similarity",
    "chance_overlap",
    "gaussian_similarity",
    "kendall",
    "lowest",
    "order",
    "overlap",
    "permutation_p_value",
    "similarity",
    "spearman",
    "spearman_z_score",
]
