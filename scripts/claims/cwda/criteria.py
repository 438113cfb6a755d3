"""Section 1 of the pruning paper, on criteria that score filters, and on how to prune filters."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from claims.draws import generator
from geometry.claims import Cases, Claim, Remark, Values

claim = partial(Claim, "CWDA")


SECTION_1 = claim(
    "Section 1, filters and one-shot pruning",
    "In each layer, the same share of the filters is pruned, and the pruned filters have the "
    "smallest scores",
    why="The statement describes the procedure of one-shot pruning. The paper does not say how "
    "it rounds $pN$, and our check rounds $pN$ down.",
)


@SECTION_1.equal("⌊pN⌋ filters are pruned, the smallest by NumPy's sort")
def _(key: Key[Array, ""]) -> Cases:
    for ratio, count in ((0.5, 50), (0.29, 29), (0.999, 99)):
        scores = generator(key).normal(size=100)
        expected = np.zeros(100)
        expected[np.argsort(scores)[:count]] = 1
        yield np.asarray(pruning.ranking.lowest(jnp.asarray(scores), ratio=ratio)) - expected


@SECTION_1.equal("scores do not change with permuted weights and, except l1, with rotated filters")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    v = rng.normal(size=(20, 12))
    rotation, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    scores = jax.jit(pruning.criteria.scores)
    plain, permuted, rotated = (scores(jnp.asarray(x)) for x in (v, v[:, ::-1], v @ rotation))
    gaps = [permuted[name] - plain[name] for name in plain]
    return gaps + [rotated[name] - plain[name] for name in plain if name != "l1"]


TABLE_2 = claim(
    "Table 2 and its footnote",
    r"The Fermat point is $F = \operatorname{argmin}\,\sum\|x - v_j\|$, and the score GM of "
    r"filter $j$ is $\sum_k\|v_k - v_j\|$",
    remark=Remark(
        "over-reading",
        "The geometric median of the filters is the Fermat point, not the score GM. The score GM "
        "of a filter is the sum of the distances to all other filters.",
    ),
)


@TABLE_2.equal("known Fermat points, and the optimality gap", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    find = jax.jit(pruning.geometric_median)
    turn = 2 * math.pi * np.arange(3) / 3
    inner = np.array([[0.0, 0], [4, 0], [0, 4], [1, 1]])
    square = np.array([[0.0, 0], [2, 0], [3, 3], [0, 1]])
    # The median of the quadrilateral `square` is the point where the diagonals cross. One diagonal
    # is from (0, 0) to (3, 3), and the other is from (2, 0) to (0, 1).
    examples = (
        (np.stack([np.cos(turn), np.sin(turn)], 1), (0, 0)),
        (np.array([[0.0, 0], [5, 0.1], [-5, 0.1]]), (0, 0)),
        (inner, (1, 1)),
        (square, (2 / 3, 2 / 3)),
    )
    gaps = [np.asarray(find(jnp.asarray(v))) - expected for v, expected in examples]
    half = rng.standard_t(2, (10, 4))
    symmetric = jnp.asarray(np.concatenate([half, -half]))
    spread = jnp.asarray(rng.standard_t(2, (20, 4)))
    gap = jax.jit(pruning.criteria.optimality_gap)(find(spread), spread)
    return [*gaps, find(symmetric), gap]


@TABLE_2.equal("scores by loops over filters", tolerance=1e-9)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    half = rng.standard_t(3, (10, 6))
    v = np.concatenate([half, -half * rng.uniform(0.2, 3, (10, 1))])
    expected = {
        "l1": [sum(abs(x) for x in row) for row in v],
        "l2": [math.dist(row, np.zeros(6)) for row in v],
        "fermat": [math.dist(row, np.zeros(6)) for row in v],
        "gm": [sum(math.dist(row, other) for other in v) for row in v],
    }
    filters = jnp.asarray(v)
    all_four = jax.jit(pruning.criteria.scores)(filters)
    one_by_one = {
        "l1": pruning.l1_norm(filters),
        "l2": pruning.l2_norm(filters),
        "fermat": pruning.fermat(filters),
        "gm": pruning.gm(filters),
    }
    found = (all_four, one_by_one)
    return [np.asarray(scores[name]) - expected[name] for scores in found for name in expected]


@TABLE_2.at_most("the optimality gap is at least the relative saving at the Fermat point")
def _() -> Values:
    cross = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    saved = 1 - 4 / (2 + 2 * 2**0.5)
    return saved - float(jax.jit(pruning.criteria.optimality_gap)(cross[0], cross))
