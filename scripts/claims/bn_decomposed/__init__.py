"""Claims of "Batch Normalization Decomposed" (Nachum, Bondaschi, Gastpar and Khina).

Samples are rows. Functions of a key return draws in float32 by name, or float64 values of many
cases. Such a value is a difference that should be 0, or an excess over a bound.
"""

from claims.bn_decomposed import (
    cells,
    figures,
    interpretation,
    invariance,
    kernel,
    odd_points,
    parts,
    ranks,
    stability,
    three_clusters,
    tree,
    tree_angles,
    two_clusters,
)
from claims.sections import claims_in

CLAIMS = claims_in(
    parts,
    cells,
    ranks,
    tree,
    tree_angles,
    two_clusters,
    three_clusters,
    kernel,
    invariance,
    stability,
    odd_points,
    figures,
    interpretation,
)
