"""Proof of Theorem 11: rows of two and of three clusters, and the norms of their descendants."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._types import Computed, Values, claims_of

claim = claims_of("Batch Normalization Decomposed")


def two_clusters(key: Key[Array, ""]) -> Values:
    """Heights of the children of a row of two values minus (new zero group)/n times its height."""
    gaps = []
    for zeros in range(1, 7):
        x = jnp.asarray([0.0] * zeros + [1.5] * (7 - zeros))
        gaps.append(float(geometry.positive(x).max()) / 1.5 - zeros / 7)
        gaps.append(float(geometry.negative(x).max()) / 1.5 - (7 - zeros) / 7)
    return gaps


EQUATIONS_36_TO_38 = claim(
    "Equations 36 to 38, Figure 7",
    "Children of a two-cluster row of height c have the height (new zero group/n) c",
    "holds",
    Computed("heights of both children", two_clusters, tolerance=1e-12),
)


def descendants(key: Key[Array, ""]) -> Values:
    """Σ c² of a two-cluster row's descendants over Eqs. 39, 40 and 43, minus 1; n = 7."""
    excess = []
    run = jax.jit(lambda x: geometry.tree(x, 6))
    for high in range(1, 7):
        rows = np.asarray(run(jnp.asarray([0.0] * (7 - high) + [1.5] * high)))
        share, rest = high / 7, 1 - high / 7
        rate = (share**2 + rest**2) ** 5
        excess.append(float(np.square(rows[-1]).sum()) / (1.5**2 * rest**2 * rate) - 1)
        excess.append(float(np.square(rows[0]).sum()) / (1.5**2 * share**2 * rate) - 1)
    return excess


EQUATIONS_39_TO_43 = claim(
    "Equations 39 to 43",
    "Σc² over T layers of descendants is c²((n − m)/n)²{((n − m)/n)² + (m/n)²}^(T−1)",
    "holds",
    Computed("n = 7, T = 6, every composition", descendants, tolerance=1e-12),
)

EQUATIONS_61_AND_62 = claim(
    "Equations 61 and 62",
    "The geometric sum of three-cluster rows is bounded",
    "holds for n ≥ 4",
    reason="the printed value is known to bound the sum for n ≥ 4; the value is not recorded",
)


def shapes_of_children(key: Key[Array, ""]) -> Values:
    """Clusters of the children of a row of two and of three values, minus (2, 2) and (2, 3)."""
    counts = []
    for row in ([0.0, 0, 0, 1, 1], [0.0, 0, 1, 4, 4]):
        x = jnp.asarray(row)
        pair = geometry.positive(x), geometry.negative(x)
        counts += sorted(len(np.unique(np.asarray(child))) for child in pair)
    return [count - expected for count, expected in zip(counts, (2, 2, 2, 3), strict=True)]


FIGURES_4_AND_8 = claim(
    "Figures 4 and 8",
    "A three-cluster row has one child of three clusters and one of two",
    "holds",
    Computed("clusters of the children", shapes_of_children),
)

CLAIMS = (EQUATIONS_36_TO_38, EQUATIONS_39_TO_43, EQUATIONS_61_AND_62, FIGURES_4_AND_8)
