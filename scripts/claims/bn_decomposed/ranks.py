"""Theorem 3 and Corollary 4, on how many random neurons give a batch full rank.

In these statements, γ is the smallest probability of a cell, which is a set of weights with the
same active samples.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.bn_decomposed.cells import POINTS, circle
from claims.draws import generator
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from jaxnorm import recenter

claim = partial(Claim, "Batch Normalization Decomposed")


def rows_for_full_rank(key: Key[Array, ""]) -> Statistics:
    """The number of random neurons that are needed until the outputs for a batch have full rank.

    The batches are one point, two orthogonal points, two opposite points, and five points on the
    circle. The entry "covariance" is (y₁ − 2) y₂ for the two orthogonal points. After y₁ neurons,
    one neuron is active for the first point; after y₂ further neurons, the rank is 2. On average,
    y₁ is 2.
    """

    def rows(x: Array) -> Array:
        needed, _ = geometry.ranks.rows_needed(key, x.astype(jnp.float32), max_rows=2000)
        return needed.astype(jnp.float32)

    one, two = rows(jnp.eye(2)[:1]), rows(jnp.eye(2))
    return {
        "single": one,
        "within_three": (one <= 3).astype(jnp.float32),
        "orthogonal": two,
        "within_nine": (two <= 9).astype(jnp.float32),
        "covariance": (one - 2) * (two - one),
        "opposite": rows(jnp.array([[1.0], [-1.0]])),
        "circle": (five := rows(circle(POINTS))),
        "within_sixty": (five <= 60).astype(jnp.float32),
    }


ROWS = Draws(rows_for_full_rank, 15_000, batch_size=5000)


def bound_of_one() -> float:
    """The upper bound n/γ on the mean number of neurons that give full rank, for one point."""
    return geometry.ranks.mean_rows_bound(1, 0.5)


def bound_of_the_circle() -> float:
    """The upper bound n/(2γ) on the mean number of neurons that give full rank, for five points."""
    return geometry.ranks.mean_rows_bound(POINTS, float(geometry.gamma_2d(circle(POINTS))))


THEOREM_3_1 = claim(
    "Theorem 3, item 1",
    r"On average, at most $n/\gamma$ rows are needed until full rank",
    covers="Equations 21 to 27",
    corrected=r"The mean number $y$ of rows until full rank is $\operatorname{E}[y] \le "
    r"n/(2\gamma)$ for $n \ge 2$, by the probability $2\gamma$ of Lemma 2",
    remark=Remark(
        "loose",
        "The bound of Theorem 3 on the mean number of rows is not sharp. For five equally spaced "
        "points on the circle, the bound is 50 rows, but the mean number of rows is 5.4.",
    ),
    why="Each additional row raises the rank with a conditional probability of at least "
    r"$\gamma$, so a rise of the rank takes at most $1/\gamma$ rows on average. Equation 27 "
    r"prints $\gamma(X^{(t+1)})$ and means $\gamma(X^{(t)})$, without consequences. The "
    "definition of $r_t$ leaves out the word rank, and has $X^{(r)}$ in place of $X^{(t)}$.",
)
THEOREM_3_1.mean("E y of one point = n/γ = 2, attained", bound_of_one, ROWS, "single")
THEOREM_3_1.mean("E y of 2 points at right angles = 28/9, bound 8", 28 / 9, ROWS, "orthogonal")
THEOREM_3_1.mean(
    "E y of 5 on the circle ≤ n/γ = 50 (5.4)", 2.0 * POINTS**2, ROWS, "circle", side="≤"
)


@THEOREM_3_1.at_most("γ falls with the number of samples, Eq. 27")
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(200, 5, 2)))
    gamma = jax.jit(jax.vmap(geometry.gamma_2d))
    return gamma(x) - gamma(x[:, :-1])


THEOREM_3_1.mean(
    "E y of 5 on the circle ≤ n/(2γ) = 25 (5.4)",
    bound_of_the_circle,
    ROWS,
    "circle",
    side="≤",
    form="corrected",
)


INDEPENDENT_STEPS = claim(
    "Theorem 3, independence of the steps",
    "Let $y_i$ be the number of rows that are needed for the $i$th increase of the rank. The "
    r"numbers $y_1, \ldots, y_n$ are independent",
    printed=r"Appendix B, before Equation 28a: “note first that $y_1, y_2, \ldots, y_n$ are "
    "independent”",
    corrected="Whatever the earlier rows are, the next row increases the rank with a probability "
    r"of at least $\gamma$. For the proof of Theorem 3, a probability of at least $\gamma$ is "
    "enough",
    fault="false",
    why="If many rows are needed until a row is active for the first sample, one of the rows is "
    "probably active for the second sample, so the second sample needs no additional row.",
)
INDEPENDENT_STEPS.mean(
    "Cov(y₁, y₂) = 0 of 2 points at right angles", 0.0, ROWS, "covariance", form="rejected"
)
INDEPENDENT_STEPS.mean("Cov(y₁, y₂) = −20/27", -20 / 27, ROWS, "covariance", form="corrected")


def _chernoff(n: int, alpha: float, gamma: float) -> float:
    """Chernoff's lower bound on the probability of n or more successes in αn/γ trials.

    Each trial succeeds with probability γ.
    """
    p, d = gamma / alpha, alpha * n / gamma
    divergence = p * math.log(p / gamma) + (1 - p) * math.log((1 - p) / (1 - gamma))
    return -math.expm1(-d * divergence)


_TAILS = [
    (n, alpha, gamma)
    for n in (1, 2, 5, 10, 50)
    for alpha in (1.2, 2.5, 4.0)
    for gamma in (1e-4, 0.01, 0.1, 0.25)
]


def tail_of_one() -> float:
    """The probability that at least one of three random neurons is active for one point."""
    return geometry.ranks.rank_tail(1, 0.5, 3)


THEOREM_3_2 = claim(
    "Theorem 3, item 2, Equations 7a and 7b",
    r"With $\lfloor \alpha n/\gamma \rfloor$ rows, the probability of rank $n$ is at least $1 - "
    r"\exp(-n[(\alpha/\gamma) \log(1/\alpha) + \ldots])$",
    covers="Equations 28a, 28b, 28c and 28d",
    remark=Remark(
        "hypothesis",
        r"The paper requires $\alpha > 2$, but $\alpha > 1$ is enough. The number of rows $\alpha "
        r"n/\gamma$ must be an integer, and may be rounded down.",
    ),
    why="The number $y$ of rows is stochastically below a sum of $n$ geometric variables, "
    "so the probability of rank $n$ is at least the probability of $n$ successes in $d$ "
    "trials.",
)


@THEOREM_3_2.at_most("7b ≤ 7a ≤ P(Bin(⌊αn/γ⌋, γ) ≥ n)", tolerance=1e-12)
def _() -> Cases:
    for n, alpha, gamma in _TAILS:
        printed = geometry.rank_tail_bound(n, alpha, gamma)
        exact = geometry.ranks.rank_tail(n, gamma, math.floor(alpha * n / gamma))
        yield [geometry.rank_tail_bound(n, alpha, 0.0) - printed, printed - exact]


@THEOREM_3_2.equal("7a is Chernoff's bound, 7b its limit", tolerance=1e-6)
def _() -> Cases:
    for n, alpha, gamma in _TAILS:
        yield geometry.rank_tail_bound(n, alpha, gamma) - _chernoff(n, alpha, gamma)
        yield geometry.rank_tail_bound(n, alpha, 0.0) - _chernoff(n, alpha, 1e-9)


THEOREM_3_2.mean("P(Bin(3, γ) ≥ 1) of one point, attained", tail_of_one, ROWS, "within_three")
THEOREM_3_2.mean(
    "P(rank 2) of 2 points at right angles, α = 1.2, 9 rows",
    geometry.rank_tail_bound(2, 1.2, 0.25),
    ROWS,
    "within_nine",
    side="≥",
)
THEOREM_3_2.mean(
    "P(rank 5) of 5 on the circle, α = 1.2, 60 rows",
    geometry.rank_tail_bound(POINTS, 1.2, 0.1),
    ROWS,
    "within_sixty",
    side="≥",
)


_U, _V = np.array([1.0, 0.3]), np.array([-0.2, 1.0])
_ZERO_ONCE_CENTRED = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
_OPPOSITE_ONCE_CENTRED = np.array([3.0, 5.0]) + np.stack([_U, -_U, _V, -_V, _U + _V, -_U - _V])
# Each batch has a different reason for its rank: a zero sample, parallel samples, dependent
# opposite pairs, and independent opposite pairs.
_SINGLE_REASONS = (
    np.stack([0 * _U, _U, _V, -_U - _V]),
    np.stack([_U, 2 * _U, _V, -3 * _U - _V]),
    _OPPOSITE_ONCE_CENTRED,
    np.stack([_U, -_U, _V, -_V]),
)


def _missing(rng: np.random.Generator, x: np.ndarray) -> int:
    """The number of samples minus the rank of 400 random neurons' outputs for recentered `x`."""
    y = np.maximum((x - x.mean(0)) @ rng.normal(size=(x.shape[1], 400)), 0)
    return len(x) - int(np.linalg.matrix_rank(y, tol=1e-9))


COROLLARY_4 = claim(
    "Corollary 4",
    "With batch norm before the ReLU, the outputs reach full rank if no two columns of the batch "
    "$X$ are collinear",
    printed=r"Corollary 4: “Theorem 3 holds for” batch norm before the ReLU, with $\gamma(X "
    r"- \text{mean})$. Theorem 3 assumes “that no two columns of $X$ are collinear”",
    corrected="With batch norm before the ReLU, the outputs reach full rank if no two columns of "
    r"the recentred batch $X - \text{mean}$ are collinear",
    fault="false in a case",
    why="For example, the columns $(0, 1)$, $(1, 1)$ and $(2, 1)$ are not collinear. After "
    "recentering, the column $(1, 1)$ becomes 0, so the rank of the batch is at most 2.",
)


@COROLLARY_4.at_most("rank n after 400 rows", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    return [_missing(generator(key), x) for x in (_ZERO_ONCE_CENTRED, _OPPOSITE_ONCE_CENTRED)]


@COROLLARY_4.equal(
    "full rank is reached if and only if `full_rank_reachable` says so", form="corrected"
)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    reachable = jax.jit(lambda x: geometry.ranks.full_rank_reachable(recenter(x)))
    batches = [*_SINGLE_REASONS, *rng.normal(size=(20, 6, 2))]
    return [float(_missing(rng, x) == 0) - bool(reachable(jnp.asarray(x))) for x in batches]


COROLLARY_4.mean(
    "E y = 3 for two points, opposite once centred", 3.0, ROWS, "opposite", form="corrected"
)
