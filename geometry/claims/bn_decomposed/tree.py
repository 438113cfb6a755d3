"""Section III: the tree of recentering and ReLU, up to Theorem 10 and its proof."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Values, claims_of

claim = claims_of("Batch Normalization Decomposed")

CASES = 200


def positive(x: Array) -> Array:
    """ReLU(x − μ), the positive child of neurons, Equation 9."""
    return jax.nn.relu(x - x.mean(0, keepdims=True))


def negative(x: Array) -> Array:
    """ReLU(μ − x), the negative child of neurons, Equation 10."""
    return jax.nn.relu(x.mean(0, keepdims=True) - x)


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


DEFINITION_5 = claim(
    "Definition 5, Equations 9 and 10, Figure 4",
    r"Each row has children $\operatorname{ReLU}(x - \mu)$ and $\operatorname{ReLU}(\mu - x)$",
    Computed("children of 2x + 3, of −x, disjoint supports, and their order", children),
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
    tight = [np.array([0.0, 1, 1 + 10.0**-k, 5]) for k in (2, 4, 8, 12)]
    for x in [*rng.normal(size=(40, 4)), *rng.uniform(size=(20, 5)), *tight]:
        depth = math.ceil(float(geometry.tree.depth_bound(jnp.asarray(x))))
        yield len(_unstable(x, min(depth, 60)))


def last_unstable_depths(key: Key[Array, ""]) -> Values:
    """First depth of stable rows of (0, 1, 1 + 10⁻ᵏ, 5), minus 6, 9, 19 and 29."""
    batches = [np.array([0.0, 1, 1 + 10.0**-k, 5]) for k in (2, 4, 8, 12)]
    depths = [next(t for t in range(60) if not len(_unstable(x, t))) for x in batches]
    return np.array(depths) - (6, 9, 19, 29)


def explicit_depths(key: Key[Array, ""]) -> Values:
    """The explicit depth of (0, 1, 1 + 2⁻ᵐ, 5), minus 3 + 2 log₄(5/2 · 2ᵐ)."""
    binary = (6, 20, 40)
    batches = [jnp.array([0.0, 1, 1 + 2.0**-m, 5]) for m in binary]
    depths = [geometry.tree.depth_bound(x) for x in batches]
    return [float(t) - 3 - m - math.log2(2.5) for t, m in zip(depths, binary, strict=True)]


def _unstable(x: np.ndarray, depth: int) -> np.ndarray:
    """Rows of more than three clusters at `depth`: the others remain stable."""
    rows = x[None]
    for _ in range(depth):
        rows = _children(rows)
        rows = rows[_clusters(rows) > 3]
    return rows


THEOREM_10 = claim(
    "Theorem 10",
    "After finitely many layers all rows have at most three clusters",
    Computed("no row of 4 clusters beyond an explicit depth", unstable_rows, "inequality"),
    Computed.corrected(
        "depths 6, 9, 19, 29 of (0, 1, 1 + 10⁻ᵏ, 5), k = 2, 4, 8, 12", last_unstable_depths
    ),
    Computed.corrected(
        "the explicit depth of (0, 1, 1 + 2⁻ᵐ, 5) is 3 + 2 log₄(5/2 · 2ᵐ)",
        explicit_depths,
        tolerance=1e-9,
    ),
    corrected="an explicit depth, by the range over the least inner gap (at least 1.5 times what "
    "was seen); none by $n$ alone",
    why="While the number of clusters stays only the two outer gaps shrink, each by $(n - 3)/n$ or "
    "more when it does, and not below a multiple of the least inner gap.",
)


def _unclustered_steps(rng: np.random.Generator) -> Cases:
    """Paths of rows that keep their clusters, with the sign of each step.

    Of two heavy ends and a light middle with tiny gaps: at most one child keeps the clusters.
    """
    for _ in range(40):
        low, high = rng.integers(3, 9, 2)
        middle = 1 + np.cumsum(rng.uniform(0, 1e-6, 3))
        row = np.concatenate([np.zeros(low), middle, np.full(high, 1 + rng.uniform(0.1, 3))])
        path = [(row, 0)]
        while (step := _lossless_step(row)) != 0 and len(path) < 30:
            row = np.maximum(step * (row - row.mean()), 0)
            path.append((row, step))
        yield path


def _lossless_step(row: np.ndarray) -> int:
    """1 or −1 if the positive or the negative child has as many clusters, else 0."""
    values = np.unique(row)
    if row.mean() < values[1] - 1e-9:
        return 1
    return -1 if row.mean() > values[-2] + 1e-9 else 0


def moved_gap(key: Key[Array, ""]) -> Cases:
    """Change of c₃ − c₂ in a step that keeps the number of clusters, over c₃ − c₂."""
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, _) in pairwise(path):
            gaps = [np.diff(np.unique(x))[1] for x in (row, child)]
            yield gaps[1] / gaps[0] - 1


def least_middle_gap(key: Key[Array, ""]) -> Cases:
    """The same of the smallest gap between neither the first nor the last two clusters."""
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, _) in pairwise(path):
            gaps = [np.diff(np.unique(x))[1:-1].min() for x in (row, child)]
            yield gaps[1] / gaps[0] - 1


def mean_after_a_step(key: Key[Array, ""]) -> Cases:
    """Mean after a positive step that keeps the clusters of a row with zeros, minus (1 − m/n) μ."""
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, step) in pairwise(path):
            if step == 1:
                yield child.mean() - (1 - (row > 0).mean()) * row.mean()


def falling_means(key: Key[Array, ""]) -> Cases:
    """From before one negative step to after the next: growth of the mean over 1 − 2/n, minus 1."""
    for path in _unclustered_steps(generator(key)):
        negative = [t for t, (_, step) in enumerate(path) if step == -1]
        for first, second in pairwise(negative):
            means = path[second][0].mean(), path[first - 1][0].mean()
            yield means[0] / means[1] / (1 - 2 / path[0][0].size) - 1


EQUATIONS_29_TO_35 = claim(
    "Theorem 10, Equations 29 to 33 of its proof",
    "While no clusters merge, $c_3 - c_2$ stays and the mean falls to 0: a contradiction",
    Computed.rejected("c₃ − c₂ stays, negative steps too", moved_gap, tolerance=1e-3),
    Computed.corrected("the least middle gap stays", least_middle_gap, tolerance=1e-3),
    Computed.corrected("Eq. 33: mean (1 − nₜ/n) μ after a positive step", mean_after_a_step),
    Computed.corrected("Eq. 35: mean below (1 − 2/n) μ", falling_means, "inequality"),
    covers="Equations 34a, 34b, 34c, 35a, 35b, 35c, 35d, 35e and 35f",
    printed=r"Appendix C: $\Delta_t \coloneqq c_3(x^{(t)}) - c_2(x^{(t)})$ (Eq. 30) and "
    r"$\Delta_{t_1} = \Delta_{t_2}$ for all $t_1, t_2$ (Eq. 31), on which 'equation (32) still "
    "holds' rests where there are negative steps",
    corrected="any gap between neither the first two nor the last two clusters stays",
    why="A negative step reverses the order: of five clusters or more it makes $c_3 - c_2$ of "
    "another pair. Four clusters or more have a middle gap, and the contradiction follows from it.",
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
    r"$\sum_{\text{rows}} (\text{clusters} - 2) = n - 2$ in every layer",
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
    "The Gram matrix of $2^t$ rows follows from $O(n^2)$ numbers",
    Computed("fast minus brute force, t = 10", fast_tree, tolerance=1e-12),
)
