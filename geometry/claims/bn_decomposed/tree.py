"""Section III: the tree of recentering and ReLU, up to Theorem 10 and its proof."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Values, claims_of
from jaxnorm import recenter

claim = claims_of("Batch Normalization Decomposed")

CASES = 200


def positive(x: Array) -> Array:
    """ReLU(x − μ), the positive child of neurons, Equation 9."""
    return jax.nn.relu(recenter(x))


def negative(x: Array) -> Array:
    """ReLU(μ − x), the negative child of neurons, Equation 10."""
    return jax.nn.relu(-recenter(x))


def children(key: Key[Array, ""]) -> Values:
    """Children of c x + s, of −x, and their product, of random rows."""
    x = jnp.asarray(generator(key).normal(size=(9, CASES)))
    up, down = positive(x), negative(x)
    return [
        positive(2 * x + 3) - 2 * up,
        positive(-x) - down,
        up * down,
        geometry.tree.step(x) - jnp.concatenate([up, down], 1),
    ]


def expansion_of_the_tree(key: Key[Array, ""]) -> Cases:
    """Frobenius distance of two trees over the distance of their inputs, minus 1."""
    rng = generator(key)
    run = jax.jit(lambda x: geometry.tree.neurons(x, depth=6))
    for scale in (1e-3, 1.0, 30.0):
        x, y = rng.normal(size=(2, 6)) * scale
        distance = np.linalg.norm(run(jnp.asarray(x)) - run(jnp.asarray(y)))
        yield float(distance / np.linalg.norm(x - y)) - 1


DEFINITION_5 = claim(
    "Definition 5, Equations 9 and 10",
    "Each row has children ReLU(x − μ) and ReLU(μ − x)",
    Computed("children of 2x + 3, of −x, and disjoint supports", children),
    Computed("the tree is 1-Lipschitz", expansion_of_the_tree, "inequality"),
)


def growth_of_clusters(key: Key[Array, ""]) -> Cases:
    """Clusters of children minus those of the parent, and minus 1 + those on their side of it."""
    for x in generator(key).integers(0, 6, (60, 7)).astype(float):
        if np.ptp(x) == 0:
            continue
        sides = np.unique(x[x > x.mean()]), np.unique(x[x < x.mean()])
        pair = positive(jnp.asarray(x)), negative(jnp.asarray(x))
        for child, side in zip(pair, sides, strict=True):
            clusters = len(np.unique(np.asarray(child)))
            yield [clusters - len(np.unique(x)), abs(clusters - len(side) - 1)]


LEMMA_7 = claim(
    "Definitions 6, 8 and 9, Lemma 7",
    "A child has at most as many clusters as its parent",
    Computed("c(child) ≤ c(x), = 1 + those on its side", growth_of_clusters, "inequality"),
)


def unstable_rows(key: Key[Array, ""]) -> Cases:
    """Rows of more than three clusters at the depth from which there should be none."""
    rng = generator(key)
    batches = [*rng.normal(size=(40, 4)), *rng.uniform(size=(20, 5)), np.array([0.0, 1, 1.01, 5])]
    for x in batches:
        depth = math.ceil(float(geometry.tree.depth_bound(jnp.asarray(x))))
        rows = x[None]
        for _ in range(min(depth, 60)):
            rows = _children(rows)
            rows = rows[_clusters(rows) > 3]  # the others remain stable
        yield len(rows)


THEOREM_10 = claim(
    "Theorem 10",
    "After finitely many layers all rows have at most three clusters",
    Computed("no row of 4 clusters beyond an explicit depth", unstable_rows, "inequality"),
    corrected="an explicit depth, by the range over the least inner gap; none by n alone",
)


def conserved_clusters(key: Key[Array, ""]) -> Cases:
    """Σ (clusters − 2) over the rows of each layer, minus n − 2."""
    for x in generator(key).normal(size=(10, 7)):
        rows = x[None]
        for _ in range(9):
            rows = _children(rows)
            yield int((_clusters(rows) - 2).sum()) - 5


STRUCTURE_OF_THE_TREE = claim(
    "Structure theorem (ours)",
    "Σ over rows of (clusters − 2) = n − 2 in every layer",
    Computed("the sum minus n − 2", conserved_clusters),
)


def _children(rows: np.ndarray) -> np.ndarray:
    deviation = rows - rows.mean(1, keepdims=True)
    return np.maximum(np.concatenate([deviation, -deviation]), 0)


def _clusters(rows: np.ndarray) -> np.ndarray:
    """Number of different values of each row."""
    return 1 + (np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(1)


def fast_tree(key: Key[Array, ""]) -> Values:
    """Gram matrix in polynomial time minus that of all 2¹⁰ rows, over its largest entry."""
    x = jnp.asarray(generator(key).normal(size=(5, 7)))

    def gap(x: Array) -> Array:
        fast, expected = (
            geometry.tree_gram(x, 10),
            geometry.gram(geometry.tree.neurons(x, depth=10)),
        )
        return (jnp.exp(2 * fast.log_scale) * fast.gram - expected) / expected.max()

    return jax.jit(jax.vmap(gap))(x)


GRAM_OF_THE_TREE = claim(
    "Gram matrix of the tree (ours)",
    "The Gram matrix of 2ᵗ rows follows from O(n²) numbers",
    Computed("fast minus brute force, t = 10", fast_tree, tolerance=1e-12),
)
