"""Chooses filters by scores, and compares the similarity of two rankings to that by chance.

The scores of a layer are one vector. The filters with the smallest scores are pruned first.
"""

from pruning.ranking._ranking import (
    PAIRS as PAIRS,
    Similarity as Similarity,
    chance_overlap as chance_overlap,
    gaussian_similarity as gaussian_similarity,
    kendall as kendall,
    lowest as lowest,
    order as order,
    overlap as overlap,
    permutation_p_value as permutation_p_value,
    similarity as similarity,
    spearman as spearman,
    spearman_z_score as spearman_z_score,
)

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
