"""Definition 1 to Corollary 4: cells of weights, and rows until full rank."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import geometry
from geometry.claims._draws import generator, normal
from geometry.claims._types import (
    Cases,
    Computed,
    Draws,
    Remark,
    Sampled,
    Statistics,
    Values,
    claims_of,
)
from jaxnorm import recenter

claim = claims_of("Batch Normalization Decomposed")

POINTS = 5  # on the circle
CASES = 200


def circle(n: int) -> Float[Array, "n 2"]:
    """`n` equally spaced points."""
    turn = 2 * math.pi * np.arange(n) / n
    return jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1))


def volumes_of_cells(key: Key[Array, ""]) -> Values:
    """Sum of the volumes − 1, and differences of those of opposite cells, of random batches."""
    x = jnp.asarray(generator(key).normal(size=(CASES, 6, 2)))
    volumes = np.asarray(jax.jit(jax.vmap(geometry.cell_volumes_2d))(x))
    return [volumes.sum(1) - 1, volumes[:, :6] - volumes[:, 6:]]


DEFINITION_1 = claim(
    "Definition 1, Equation 5",
    "Cells of w with equal signs of all w·xᵢ have volumes that add to 1, opposite ones equal",
    Computed("Σ vol = 1, vol(−C) = vol(C)", volumes_of_cells),
)


def in_the_first_cell(key: Key[Array, ""]) -> Statistics:
    """Whether a Gaussian w lies in the same cell as the first of the points on the circle."""
    x = circle(POINTS).astype(jnp.float32)
    signs = jnp.sign(normal(key, 2000, 2) @ x.T)
    inside = jnp.all(signs == jnp.sign(x[:1] @ x.T), axis=1)
    return {"inside": inside.astype(jnp.float32)}


CELL = Draws(in_the_first_cell, 200_000, batch_size=20_000, draws_per_key=2000)


def gamma_of_the_circle(key: Key[Array, ""]) -> Values:
    """2n γ of n points on the circle."""
    gamma = jax.jit(geometry.gamma_2d)
    return [float(gamma(circle(n))) * 2 * n for n in (5, 9)]


GAMMA_OF_THE_CIRCLE = claim(
    "Definition 1, example",
    "γ(X) of n = 5 equally spaced points on the circle",
    Sampled.rejected("P(w in a cell) = 1/n", 1 / POINTS, CELL, "inside"),
    Sampled.corrected("P(w in a cell) = 1/(2n)", 1 / (2 * POINTS), CELL, "inside"),
    Computed.corrected("2n γ = 1 exactly, n = 5 and 9", gamma_of_the_circle, predicted=1.0),
    printed="n cells, γ = 1/n",
    corrected="2n cells, γ = 1/(2n)",
)


def lemma_2(key: Key[Array, ""]) -> Values:
    """γ minus the probability that one more neuron gives full rank, in units of γ."""
    rng = generator(key)
    x, rows = rng.normal(size=(CASES * 5, 4, 2)), rng.normal(size=(CASES * 5, 3, 2))
    y = np.maximum(np.einsum("ind,ird->inr", x, rows), 0)
    fits = (np.linalg.matrix_rank(y[:, :3]) == 3) & (np.linalg.cond(y[:, :3]) < 1e4)
    x, rows = (jnp.asarray(part[fits][:CASES]) for part in (x, rows))
    gamma = jax.jit(jax.vmap(geometry.gamma_2d))(x)
    probability = jax.jit(jax.vmap(geometry.ranks.full_rank_probability))(x, rows)
    return 1 - np.asarray(probability / gamma)


LEMMA_2 = claim(
    "Lemma 2, Equation 6",
    "One more Gaussian row raises the rank with probability at least γ",
    Computed("P/γ ≥ 1", lemma_2, "inequality"),
    Computed.corrected("P/γ ≥ 2", lemma_2, "inequality", -1.0),
    corrected="with probability at least 2γ, by a repaired proof",
)


def rows_for_full_rank(key: Key[Array, ""]) -> Statistics:
    """Neurons until full rank: two orthogonal points, two opposite ones, five on the circle."""
    batches = {
        "orthogonal": jnp.eye(2),
        "opposite": jnp.array([[1.0], [-1.0]]),
        "circle": circle(POINTS),
    }
    return {
        name: geometry.ranks.rows_needed(key, x.astype(jnp.float32), max_rows=2000)[0].astype(
            jnp.float32
        )
        for name, x in batches.items()
    }


ROWS = Draws(rows_for_full_rank, 15_000, batch_size=5000)

THEOREM_3_1 = claim(
    "Theorem 3, item 1",
    "The mean number y of rows until full rank is at most n/γ",
    Sampled("E y of 2 points at right angles = 28/9", 28 / 9, ROWS, "orthogonal"),
    Sampled("E y of 5 on the circle ≤ n/γ", 2.0 * POINTS**2, ROWS, "circle", side="≤"),
    Sampled.corrected("E y of 5 on the circle ≤ n/(2γ)", 1.0 * POINTS**2, ROWS, "circle", side="≤"),
    corrected="E y ≤ n/(2γ) for n ≥ 2",
    remark=Remark("loose", "holds, loose"),
)


def rank_tails(key: Key[Array, ""]) -> Cases:
    """Excess of Eq. 7b over Eq. 7a, and of that over the exact tail."""
    for n in (1, 2, 5, 10, 50):
        for alpha in (1.2, 2.5, 4.0):
            for gamma in (1e-4, 0.01, 0.1, 0.25):
                printed = geometry.rank_tail_bound(n, alpha, gamma)
                exact = geometry.ranks.rank_tail(n, gamma, math.floor(alpha * n / gamma))
                yield [geometry.rank_tail_bound(n, alpha, 0.0) - printed, printed - exact]


THEOREM_3_2 = claim(
    "Theorem 3, item 2, Equations 7a and 7b",
    "P(rank n) of ⌊αn/γ⌋ rows is at least 1 − exp(−n[(α/γ) log(1/α) + …])",
    Computed("7b ≤ 7a ≤ P(Bin(⌊αn/γ⌋, γ) ≥ n)", rank_tails, "inequality", tolerance=1e-12),
    remark=Remark("hypothesis", "holds, for α > 1 too"),
)


_U, _V = np.array([1.0, 0.3]), np.array([-0.2, 1.0])
_ALIGNED_ONCE_CENTRED = (
    np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]),
    np.array([3.0, 5.0]) + np.stack([_U, -_U, _V, -_V, _U + _V, -_U - _V]),
)


def _missing(rng: np.random.Generator, x: np.ndarray) -> int:
    """Rank that `x` misses after recentering and 400 random neurons."""
    y = np.maximum((x - x.mean(0)) @ rng.normal(size=(x.shape[1], 400)), 0)
    return len(x) - int(np.linalg.matrix_rank(y, tol=1e-9))


def missing_rank(key: Key[Array, ""]) -> Values:
    """Rank missing after 400 neurons and batch norm, of batches no two columns of which align."""
    return [_missing(generator(key), x) for x in _ALIGNED_ONCE_CENTRED]


def reachable_rank(key: Key[Array, ""]) -> Values:
    """Whether full rank is reached, minus whether it is said to be."""
    rng = generator(key)
    reachable = jax.jit(lambda x: geometry.ranks.full_rank_reachable(recenter(x)))
    batches = [_ALIGNED_ONCE_CENTRED[1], *rng.normal(size=(20, 6, 2))]
    return [float(_missing(rng, x) == 0) - bool(reachable(jnp.asarray(x))) for x in batches]


COROLLARY_4 = claim(
    "Corollary 4",
    "With batch norm before the ReLU, full rank is reached if no two columns of X align",
    Computed.rejected("rank n after 400 rows", missing_rank, "inequality"),
    Computed.corrected("reached iff said to be", reachable_rank),
    Sampled.corrected("E y = 3 for two points, opposite once centred", 3.0, ROWS, "opposite"),
    printed="the hypothesis is on X",
    corrected="it must be on X − mean: no zero, no parallel, independent antiparallel pairs",
)
