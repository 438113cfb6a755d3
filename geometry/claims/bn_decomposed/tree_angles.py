"""Theorem 11: angles and norms of the samples deep in the tree, and its proof by clusters."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Values, claims_of
from geometry.claims.bn_decomposed.tree import negative, positive
from geometry.tree import EndBounds

claim = claims_of("Batch Normalization Decomposed")

DEEP, DEEP_POINTS = 4000, 6


def angles_from_products(key: Key[Array, ""]) -> Values:
    """Cosines of our angles minus those of products of unit vectors."""
    x = generator(key).normal(size=(30, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.cos(geometry.angles(jnp.asarray(x))) - unit @ unit.T


EQUATION_11 = claim(
    "Equation 11",
    "angle(x, y) = arccos(x·y/‖x‖‖y‖)",
    Computed("cosines agree", angles_from_products, tolerance=1e-12),
)


@cache
def _deep_trees() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, norms and r of sorted Gaussian points at depth 4,000: several checks read them."""
    x = np.sort(np.random.default_rng(0).normal(size=(60, DEEP_POINTS)), axis=1)
    x[0] = np.arange(DEEP_POINTS)  # symmetric: where the sharp constants are attained

    def run(x: Array) -> tuple[Array, Array, Array]:
        tree = geometry.tree_gram(x, DEEP)
        norms = jnp.sqrt(jnp.diagonal(tree.gram))
        cosines = tree.gram / norms[:, None] / norms[None]
        square = tree.squared_distances
        return cosines, norms, square[-1, -2] / square[1, 0]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(jnp.asarray(x)))


def orthogonal_ends(key: Key[Array, ""]) -> Values:
    """Cosines of the smallest and the largest sample."""
    return _deep_trees()[0][:, 0, -1]


THEOREM_11_1 = claim(
    "Theorem 11, item 1",
    "The smallest and the largest sample are orthogonal from layer 1 on",
    Computed("cos(x₁, xₙ) = 0", orthogonal_ends),
)


def merged_interior(key: Key[Array, ""]) -> Values:
    """1 − cosines of inner samples."""
    return 1 - _deep_trees()[0][:, 1:-1, 1:-1]


def decay_in_the_tree(key: Key[Array, ""]) -> Values:
    """Factor a layer by which 1 − cos(x₂, x₃) falls, over λ₂/λ₁, eight points."""
    x = jnp.asarray(np.sort(generator(key).normal(size=(5, 8)), axis=1))

    def gap(x: Array, depth: int) -> Array:
        tree = geometry.tree_gram(x, depth)
        return tree.squared_distances[1, 2] / tree.gram[1, 1]

    last, before = (jax.jit(jax.vmap(partial(gap, depth=t)))(x) for t in (301, 300))
    rates = [(p**2 + (8 - p) ** 2) / 64 for p in (1, 2)]
    return np.asarray(last) / np.asarray(before) / (rates[1] / rates[0])


THEOREM_11_2 = claim(
    "Theorem 11, item 2",
    "The angles of inner samples tend to 0",
    Computed("1 − cos at depth 4,000", merged_interior, tolerance=1e-12),
    Computed.corrected(
        "1 − cos falls like (λ₂/λ₁)ᵗ, λₚ = (p² + (n − p)²)/n²",
        decay_in_the_tree,
        predicted=1.0,
        tolerance=1e-3,
    ),
    corrected="geometrically, by a known rate",
)


def printed_end_bounds(n: int) -> EndBounds:
    """The bounds of Theorem 11 as printed, which `geometry.tree.end_bounds` sharpens.

    3/(n − 2) and π/2 − √2 π/(n − 2), for n samples; vacuous for n = 3 and 4.

    Raises:
      ValueError: n is below 3.

    Example:
      >>> print(f"{printed_end_bounds(5).norm_ratio:.1f}")
      1.0
    """
    if n < 3:
        raise ValueError(f"a tree with a cluster needs at least 3 samples; got {n}")
    return EndBounds(3 / (n - 2), math.pi / 2 - 2**0.5 * math.pi / (n - 2))


def printed_ratio(key: Key[Array, ""]) -> Values:
    """Norm ratio of the better end over the printed bound, minus 1; n = 6."""
    return _better_ends()[0] / printed_end_bounds(DEEP_POINTS).norm_ratio - 1


def sharp_ends(key: Key[Array, ""]) -> Values:
    """Norm ratio of the better end minus its bound, and the bound of its angle minus the angle."""
    ratio, angle = _better_ends()
    sharp = geometry.tree.end_bounds(DEEP_POINTS)
    return [ratio - sharp.norm_ratio, sharp.angle - angle]


THEOREM_11_3 = claim(
    "Theorem 11, item 3",
    "lim ‖xᵢ‖/‖x₁‖ or lim ‖xᵢ‖/‖xₙ‖ ≤ 3/(n − 2) for inner i",
    Computed("n = 6", printed_ratio, "inequality"),
    Computed.corrected("sharp constants of items 3 and 4", sharp_ends, "inequality"),
    corrected="≤ √(2/((n − 1)² + 1)), attained by symmetric samples",
    remark=Remark("loose", "holds, loose"),
)


def printed_angle(key: Key[Array, ""]) -> Values:
    """Printed bound of the angle with the better end minus the angle."""
    return printed_end_bounds(DEEP_POINTS).angle - _better_ends()[1]


def limits_of_the_tree(key: Key[Array, ""]) -> Values:
    """Norm ratios and cosines minus those that r gives."""
    cosines, norms, r = _deep_trees()
    limits = jax.jit(jax.vmap(lambda r: geometry.tree.limits(DEEP_POINTS, r)))(jnp.asarray(r))
    ratios = norms[:, 2, None] / norms[:, [0, -1]] - np.asarray(limits.norm_ratios)
    return [ratios, cosines[:, 2, [0, -1]] - np.cos(limits.angles)]


THEOREM_11_4 = claim(
    "Theorem 11, item 4, Equation 12",
    "One of the limit angles of inner samples with the ends is at least π/2 − √2π/(n − 2)",
    Computed("n = 6", printed_angle, "inequality"),
    Computed.corrected("limits by r = lim ‖xₙ − xₙ₋₁‖²/‖x₂ − x₁‖²", limits_of_the_tree),
    corrected="exact: cos = r/√((1 + r)(m + r)) and 1/√((1 + r)(1 + mr)), m = (n − 1)²",
    remark=Remark("loose", "holds, loose"),
)


def _better_ends() -> tuple[np.ndarray, np.ndarray]:
    """Smaller norm ratio of an inner sample to the ends, and its larger angle with them."""
    cosines, norms, _ = _deep_trees()
    ratios = norms[:, 2, None] / norms[:, [0, -1]]
    return ratios.min(1), np.arccos(cosines[:, 2, [0, -1]]).max(1)


def dominating_pair(key: Key[Array, ""]) -> Values:
    """Cosine of a pair that is extreme in all of three coordinates, and 1 − those of the others."""
    x = generator(key).uniform(-1, 1, (6, 3))
    x[0], x[-1] = (-2.0, 3.0, -4.0), (2.0, -3.0, 4.0)
    g = np.asarray(jax.jit(lambda x: geometry.tree_gram(x, 2000).gram)(jnp.asarray(x)))
    cosines = g / np.sqrt(np.outer(np.diag(g), np.diag(g)))
    return [1 - cosines[1:-1, 1:-1], cosines[0, -1]]


SEVERAL_COORDINATES = claim(
    "Remark on several coordinates",
    "Theorem 11 holds if one pair is extreme in every coordinate",
    Computed("ends orthogonal, others merged, d = 3", dominating_pair),
)


def two_clusters(key: Key[Array, ""]) -> Cases:
    """Heights of the children of a row of two values minus (new zero group)/n times its height."""
    for zeros in range(1, 7):
        x = jnp.asarray([0.0] * zeros + [1.5] * (7 - zeros))
        yield float(positive(x).max()) / 1.5 - zeros / 7
        yield float(negative(x).max()) / 1.5 - (7 - zeros) / 7


EQUATIONS_36_TO_38 = claim(
    "Equations 36 to 38, Figure 7",
    "Children of a two-cluster row of height c have the height (new zero group/n) c",
    Computed("heights of both children", two_clusters, tolerance=1e-12),
)


def descendants(key: Key[Array, ""]) -> Cases:
    """Σ c² of a two-cluster row's descendants over Eqs. 39, 40 and 43, minus 1; n = 7."""
    run = jax.jit(lambda x: geometry.tree.neurons(x, depth=6))
    for high in range(1, 7):
        rows = np.asarray(run(jnp.asarray([0.0] * (7 - high) + [1.5] * high)))
        share, rest = high / 7, 1 - high / 7
        rate = (share**2 + rest**2) ** 5
        yield float(np.square(rows[-1]).sum()) / (1.5**2 * rest**2 * rate) - 1
        yield float(np.square(rows[0]).sum()) / (1.5**2 * share**2 * rate) - 1


EQUATIONS_39_TO_43 = claim(
    "Equations 39 to 43",
    "Σc² over T layers of descendants is c²((n − m)/n)²{((n − m)/n)² + (m/n)²}^(T−1)",
    Computed("n = 7, T = 6, every composition", descendants, tolerance=1e-12),
)

EQUATIONS_61_AND_62 = claim(
    "Equations 61 and 62",
    "The geometric sum of three-cluster rows is bounded",
    reason="the printed value is known to bound the sum for n ≥ 4; the value is not recorded",
)


def shapes_of_children(key: Key[Array, ""]) -> Values:
    """Clusters of the children of a row of two and of three values, minus (2, 2) and (2, 3)."""
    counts = []
    for row in ([0.0, 0, 0, 1, 1], [0.0, 0, 1, 4, 4]):
        x = jnp.asarray(row)
        pair = positive(x), negative(x)
        counts += sorted(len(np.unique(np.asarray(child))) for child in pair)
    return [count - expected for count, expected in zip(counts, (2, 2, 2, 3), strict=True)]


FIGURES_4_AND_8 = claim(
    "Figures 4 and 8",
    "A three-cluster row has one child of three clusters and one of two",
    Computed("clusters of the children", shapes_of_children),
)
