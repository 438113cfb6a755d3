"""Section III, on the tree of recentering and ReLU, up to the proof of Theorem 10."""

import math
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator
from geometry.claims import Cases, Claim, Values

claim = partial(Claim, "Batch Normalization Decomposed")

CASES = 200


def positive(x: Array) -> Array:
    """The positive children ReLU(x − μ) of neurons, Equation 9."""
    return jax.nn.relu(x - x.mean(0, keepdims=True))


def negative(x: Array) -> Array:
    """The negative children ReLU(μ − x) of neurons, Equation 10."""
    return jax.nn.relu(x.mean(0, keepdims=True) - x)


DEFINITION_5 = claim(
    "Definition 5, Equations 9 and 10, Figure 4",
    r"Each row $x$ with the mean $\mu$ has the two children $\operatorname{ReLU}(x - \mu)$ and "
    r"$\operatorname{ReLU}(\mu - x)$",
)


@DEFINITION_5.equal("children of 2x + 3, of −x, disjoint supports, and their order")
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(9, CASES)))
    up, down = positive(x), negative(x)
    return [
        positive(2 * x + 3) - 2 * up,
        positive(-x) - down,
        up * down,
        geometry.tree.step(x) - jnp.concatenate([up, down], 1),
    ]


LEMMA_7 = claim(
    "Definitions 6, 8 and 9, Lemma 7", "A child row has at most as many clusters as the parent row"
)


@LEMMA_7.at_most("c(child) ≤ c(x), = 1 + those on its side")
def _(key: Key[Array, ""]) -> Cases:
    for x in generator(key).integers(0, 6, (60, 7)).astype(float):
        if np.ptp(x) == 0:
            continue
        sides = np.unique(x[x > x.mean()]), np.unique(x[x < x.mean()])
        pair = positive(jnp.asarray(x)), negative(jnp.asarray(x))
        for child, side in zip(pair, sides, strict=True):
            clusters = len(np.unique(np.asarray(child)))
            yield [clusters - len(np.unique(x)), abs(clusters - len(side) - 1)]


def _unstable(x: np.ndarray, depth: int) -> np.ndarray:
    """The unstable neurons at `depth`, which have more than three clusters of equal samples."""
    rows = x[None]
    for _ in range(depth):
        rows = _children(rows)
        rows = rows[_clusters(rows) > 3]
    return rows


THEOREM_10 = claim(
    "Theorem 10",
    "After finitely many layers, all rows have at most three clusters",
    corrected="An explicit depth is enough, which depends on the ratio of the range of the "
    "samples to the smallest inner gap. In our checks, the explicit depth is at least 1.5 times "
    "the needed depth. No depth that depends on $n$ alone is enough",
    why="While the number of clusters does not change, only the two outer gaps shrink. A layer "
    "multiplies a shrinking gap by a factor of at most $(n - 3)/n$, but the gap remains above a "
    "multiple of the smallest inner gap.",
)


@THEOREM_10.at_most("no row of 4 clusters beyond an explicit depth")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    tight = [np.array([0.0, 1, 1 + 10.0**-k, 5]) for k in (2, 4, 8, 12)]
    for x in [*rng.normal(size=(40, 4)), *rng.uniform(size=(20, 5)), *tight]:
        depth = math.ceil(float(geometry.tree.depth_bound(jnp.asarray(x))))
        yield len(_unstable(x, min(depth, 60)))


@THEOREM_10.equal("depths 6, 9, 19, 29 of (0, 1, 1 + 10⁻ᵏ, 5), k = 2, 4, 8, 12", form="corrected")
def _() -> Values:
    batches = [np.array([0.0, 1, 1 + 10.0**-k, 5]) for k in (2, 4, 8, 12)]
    depths = [next(t for t in range(60) if not len(_unstable(x, t))) for x in batches]
    return np.array(depths) - (6, 9, 19, 29)


@THEOREM_10.equal(
    "the explicit depth of (0, 1, 1 + 2⁻ᵐ, 5) is 3 + 2 log₄(5/2 · 2ᵐ)",
    tolerance=1e-9,
    form="corrected",
)
def _() -> Values:
    binary = (6, 20, 40)
    batches = [jnp.array([0.0, 1, 1 + 2.0**-m, 5]) for m in binary]
    depths = [geometry.tree.depth_bound(x) for x in batches]
    return [float(t) - 3 - m - math.log2(2.5) for t, m in zip(depths, binary, strict=True)]


def _unclustered_steps(rng: np.random.Generator) -> Cases:
    """Yield chains of neurons with the same number of clusters, and the signs of the chains' steps.

    Each neuron of a chain is a child of the previous neuron.
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
    """The sign (1 or −1) of the child that has as many clusters as `row`, or 0 without one."""
    values = np.unique(row)
    if row.mean() < values[1] - 1e-9:
        return 1
    return -1 if row.mean() > values[-2] + 1e-9 else 0


EQUATIONS_29_TO_35 = claim(
    "Theorem 10, Equations 29 to 33 of its proof",
    r"While no clusters merge, the mean stays above $\Delta/n$ (Equation 32) and also falls to 0, "
    "which is a contradiction",
    covers="Equations 34a, 34b, 34c, 35a, 35b, 35c, 35d, 35e and 35f",
    printed=r"Appendix C: for positive transformations, $\Delta_{t_1} = \Delta_{t_2}$ (Equation "
    r"31). For negative transformations, “equation (32) still holds”: the mean is above $\Delta/n$",
    why="While no clusters merge, the middle gaps keep their values, so each row contains "
    "the first middle gap, and the largest entry of the row exceeds the first middle gap. "
    "Equation 31 is about positive transformations. A negative transformation reverses the order "
    "of the clusters. With five clusters or more, the gap $c_3 - c_2$ is then between other "
    "clusters. Equation 32 still holds.",
)


@EQUATIONS_29_TO_35.at_most("Eq. 32: the gap c₃ − c₂ of the start over n times the mean, minus 1")
def _(key: Key[Array, ""]) -> Cases:
    for path in _unclustered_steps(generator(key)):
        first = path[0][0]
        gap = np.diff(np.unique(first))[1]
        for row, _ in path:
            yield gap / (len(row) * row.mean()) - 1


@EQUATIONS_29_TO_35.equal("c₃ − c₂ stays, negative steps too", tolerance=1e-3, form="overread")
def _(key: Key[Array, ""]) -> Cases:
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, _) in pairwise(path):
            gaps = [np.diff(np.unique(x))[1] for x in (row, child)]
            yield gaps[1] / gaps[0] - 1


@EQUATIONS_29_TO_35.equal("the least middle gap stays", tolerance=1e-3)
def _(key: Key[Array, ""]) -> Cases:
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, _) in pairwise(path):
            gaps = [np.diff(np.unique(x))[1:-1].min() for x in (row, child)]
            yield gaps[1] / gaps[0] - 1


@EQUATIONS_29_TO_35.equal("Eq. 33: mean (1 − nₜ/n) μ after a positive step")
def _(key: Key[Array, ""]) -> Cases:
    for path in _unclustered_steps(generator(key)):
        for (row, _), (child, step) in pairwise(path):
            if step == 1:
                yield child.mean() - (1 - (row > 0).mean()) * row.mean()


@EQUATIONS_29_TO_35.at_most("Eq. 35: mean below (1 − 2/n) μ")
def _(key: Key[Array, ""]) -> Cases:
    for path in _unclustered_steps(generator(key)):
        negative = [t for t, (_, step) in enumerate(path) if step == -1]
        for first, second in pairwise(negative):
            means = path[second][0].mean(), path[first - 1][0].mean()
            yield means[0] / means[1] / (1 - 2 / path[0][0].size) - 1


STRUCTURE_OF_THE_TREE = claim(
    "Structure theorem (ours)", r"$\sum_{\text{rows}} (\text{clusters} - 2) = n - 2$ in every layer"
)


@STRUCTURE_OF_THE_TREE.equal("the sum minus n − 2")
def _(key: Key[Array, ""]) -> Cases:
    for x in generator(key).normal(size=(10, 7)):
        rows = x[None]
        for _ in range(9):
            rows = _children(rows)
            yield int((_clusters(rows) - 2).sum()) - 5


def _children(rows: np.ndarray) -> np.ndarray:
    deviation = rows - rows.mean(1, keepdims=True)
    return np.maximum(np.concatenate([deviation, -deviation]), 0)


def _clusters(rows: np.ndarray) -> np.ndarray:
    """The number of different values that each neuron has on the samples."""
    return 1 + (np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(1)


GRAM_OF_THE_TREE = claim(
    "Gram matrix of the tree (ours)", "The Gram matrix of $2^t$ rows follows from $O(n^2)$ numbers"
)


@GRAM_OF_THE_TREE.equal("fast minus brute force, t = 10", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(5, 7)))

    def gap(x: Array) -> Array:
        fast, expected = (
            geometry.tree_gram(x, 10),
            geometry.gram(geometry.tree.neurons(x, depth=10)),
        )
        return (jnp.exp(2 * fast.log_scale) * fast.gram - expected) / expected.max()

    return jax.jit(jax.vmap(gap))(x)
