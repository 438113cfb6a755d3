"""Appendix E of the pruning paper: coordinates of points, for the proof of Theorem 4."""

import numpy as np
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Values, claims_of

claim = claims_of("CWDA")


def ranks_of_gaussian_matrices(key: Key[Array, ""]) -> Cases:
    """Rank minus min(n, m), of entries and of differences from the first row."""
    rng = generator(key)
    for n, m in ((5, 9), (9, 5), (64, 64), (30, 29)):
        v = rng.normal(size=(n, m))
        yield int(np.linalg.matrix_rank(v)) - min(n, m)
        yield int(np.linalg.matrix_rank(v[1:] - v[0])) - min(n - 1, m)


PROPOSITION_8 = claim(
    "Proposition 8, Equation 42",
    "A Gaussian matrix has full rank with probability 1",
    Computed("entries, and differences from a row", ranks_of_gaussian_matrices),
    why="Matrices of lower rank are the zeros of polynomials. Theorem 4 needs the rank of the "
    "$v_i - v_0$, whose entries are dependent but have a density too. The sentence says "
    "Equation 8 for 42.",
)


def distance_matrix(v: np.ndarray) -> np.ndarray:
    """D, minus half the squared distances of the points v."""
    return -np.square(v[:, None] - v).sum(-1) / 2


def barycentric(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
    """Coordinates λ of least norm with Σλ = 1, and the residual of x."""
    system = np.vstack([v.T, np.ones(len(v))])
    weights = np.linalg.lstsq(system, np.append(x, 1), rcond=None)[0]
    return weights, float(np.linalg.norm(system @ weights - np.append(x, 1)))


def barycentric_of_few(key: Key[Array, ""]) -> Values:
    """Residual of a point of R⁷ for 4 points v, of which the differences have rank 3."""
    rng = generator(key)
    return barycentric(rng.normal(size=7), rng.normal(size=(4, 7)))[1]


def barycentric_of_a_simplex(key: Key[Array, ""]) -> Cases:
    """Residuals of points of Rⁿ for n + 1 points v."""
    rng = generator(key)
    for n in (1, 2, 7):
        yield barycentric(rng.normal(size=n), rng.normal(size=(n + 1, n)))[1]


def barycentric_of_many(key: Key[Array, ""]) -> Cases:
    """Residuals of points of R⁷ for 9 and 15 points v."""
    rng = generator(key)
    for points in (9, 15):
        yield barycentric(rng.normal(size=7), rng.normal(size=(points, 7)))[1]


LEMMA_4 = claim(
    "Lemma 4, Equation 43",
    r"Every $x$ is $\sum\lambda_iv_i$ with $\sum\lambda_i = 1$ if "
    r"$\operatorname{rank}(v_i - v_0) = n$, $k \le n$",
    Computed("residual for k = n", barycentric_of_a_simplex, tolerance=1e-11),
    Computed.overread("for k < n: residual of 4 points in R⁷", barycentric_of_few, tolerance=0.1),
    Computed.corrected("residual for k ≥ n", barycentric_of_many, tolerance=1e-11),
    corrected=r"$k \ge n$, as Theorem 4 needs it",
    remark=Remark(
        "hypothesis",
        r"$k \le n$ and rank $n$ leave $k = n$ alone; it holds for $k \ge n$ as well, where the "
        r"$v_i - v_0$ span the space without being a basis, and $\lambda$ is not unique.",
    ),
    why=r"The $v_i - v_0$ span the space, $x - v_0 = \sum t_i(v_i - v_0)$, and "
    r"$\lambda_0 = 1 - \sum t_i$.",
)


def distance_steps(key: Key[Array, ""]) -> Cases:
    """Both sides of Equations 44 to 52, relative to ‖a − b‖²."""
    rng = generator(key)
    for n in (8, 12):
        v, a, b = rng.normal(size=(n, 7)), *rng.normal(size=(2, 7))
        w = barycentric(a, v)[0] - barycentric(b, v)[0]
        d, gram, squares = distance_matrix(v), v @ v.T, np.square(v).sum(1)
        whole = np.square(a - b).sum()
        halves = (squares[:, None] + squares) / 2
        yield np.array([w @ d @ w, w @ gram @ w, w @ (d + halves) @ w]) / whole - 1
        yield np.ravel(d - (gram - halves))
        yield w @ halves @ w / whole


def distance_of_any_coordinates(key: Key[Array, ""]) -> Values:
    """‖a − b‖² = wᵀDw of coordinates that do not sum to 1, relative."""
    rng = generator(key)
    v, w = rng.normal(size=(8, 7)), 1 + rng.uniform(size=8)
    return float(w @ distance_matrix(v) @ w / np.square(w @ v).sum()) - 1


LEMMA_5 = claim(
    "Lemma 5, Equations 44 to 52",
    r"$\|a - b\|^2 = (\lambda - \mu)^\top D(\lambda - \mu)$, $D_{ij} = -\|v_i - v_j\|^2/2$",
    Computed("each step, and the result", distance_steps, tolerance=1e-10),
    Computed.overread("for any coordinates", distance_of_any_coordinates, tolerance=0.1),
    remark=Remark(
        "hypothesis",
        "The coordinates of $a$ and of $b$ must have the same sum, which barycentric ones have; "
        "they need not be unique.",
    ),
    why=r"$D$ is $R^\top R$ minus terms that are constant along rows or columns, and "
    r"$\sum(\lambda_i - \mu_i) = 0$ makes these vanish.",
)


def spans(key: Key[Array, ""]) -> Values:
    """Dimension of the span of 20 points of v₀ + W in R⁶, dim W = 5, minus 5 and 6."""
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    inside, outside = rng.normal(size=5) @ w, rng.normal(size=6)
    points = rng.normal(size=(20, 5)) @ w
    ranks = [int(np.linalg.matrix_rank(points + v)) for v in (inside, outside)]
    return [ranks[0] - 5, ranks[1] - 6]


DEFINITION_1 = claim(
    "Definition 1, Equation 53",
    r"The ultra dimension of $v_0 + W$ is $\dim W$, or one more",
    Computed("r and r + 1 in R⁶", spans),
)


def completed_bases(key: Key[Array, ""]) -> Cases:
    """Rank of k given vectors and n − k random points of a hyperplane, minus n = 6."""
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    for k, origin in ((1, rng.normal(size=6)), (3, rng.normal(size=6)), (2, np.zeros(6))):
        points = origin + rng.normal(size=(6 - k, 5)) @ w
        rows = np.vstack([rng.normal(size=(k, 6)), points])
        yield int(np.linalg.matrix_rank(rows)) - 6


def completed_within_the_hyperplane(key: Key[Array, ""]) -> Values:
    """The same where v₀ and the given vectors are in W."""
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    return float(np.linalg.matrix_rank(rng.normal(size=(6, 5)) @ w)) - 6


LEMMA_6 = claim(
    "Lemma 6, Equations 54 to 56",
    "Points of an affine hyperplane complete independent vectors to a basis, unless all are in it",
    Computed("rank minus n", completed_bases),
    Computed.overread("also if v₀ and all vectors are in W", completed_within_the_hyperplane),
    remark=Remark(
        "hypothesis",
        "The condition that not all $a_i$ belong to $P$ is needed only where $v_0$ is in $W$.",
    ),
    why="If no point of $P$ were independent of the vectors, $P$ would lie in their span (54), "
    "whose dimension is too small (55, 56) or which is $P$ itself. The last line of the "
    "induction is for $n - k = l + 1$.",
)
