"""Claims of "Batch Normalization Decomposed" (Nachum, Bondaschi, Gastpar and Khina).

Samples are the rows of a batch. A function that takes a random key returns either named float32
draws, or float64 numbers for many cases. A float64 number is a difference that should be 0, an
excess over a bound, or a value that should equal the number in the check.
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
