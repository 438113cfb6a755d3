"""Claims of "Batch Normalization Decomposed" (Nachum, Bondaschi, Gastpar and Khina).

Samples are rows. Functions of a key return draws in float32 by name, or the values of many cases in
float64: differences that should be 0, or excesses over a bound.
"""

from geometry.claims._types import claims_in
from geometry.claims.bn_decomposed import (
    figures,
    invariance,
    kernel,
    parts,
    ranks,
    tree,
    tree_angles,
)

CLAIMS = claims_in(parts, ranks, tree, tree_angles, kernel, invariance, figures)
