"""Claims in Appendix E of the pruning paper on coordinates of points, for Theorem 4's proof."""

from functools import partial

import numpy as np
from jaxtyping import Array, Key

from claims.draws import generator
from geometry.claims import Cases, Claim, Remark, Values

claim = partial(Claim, "CWDA")


PROPOSITION_8 = claim(
    "Proposition 8, Equation 42",
    "A Gaussian matrix has full rank with probability 1",
    printed="Proposition 8: “For a n×m random matrix (aij)n×m, where aij ∼ N(0, σ2). And Eq. (8) "
    r"holds with probability 1.” The equation is Equation 42, $\operatorname{rank} = \min(m, n)$",
    corrected="The entries of the matrix must have a joint density. Independent Gaussian entries "
    "have a joint density",
    fault="false in a case",
    why="If all entries of a matrix equal one normal variable, the matrix has rank 1. If the "
    "entries have a joint density, the rank is full with probability 1, because the rank is lower "
    "only if polynomials of the entries are zero. The differences $v_i - v_0$ in Theorem 4 have a "
    "joint density, so the rank in Theorem 4 is full with probability 1.",
)


@PROPOSITION_8.equal("rank 5 of a 5 × 9 matrix with aᵢⱼ = z for all i and j", 5.0, form="rejected")
def _(key: Key[Array, ""]) -> Values:
    return float(np.linalg.matrix_rank(np.full((5, 9), generator(key).normal())))


@PROPOSITION_8.equal("independent entries, and differences from a row", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for n, m in ((5, 9), (9, 5), (64, 64), (30, 29)):
        v = rng.normal(size=(n, m))
        yield int(np.linalg.matrix_rank(v)) - min(n, m)
        yield int(np.linalg.matrix_rank(v[1:] - v[0])) - min(n - 1, m)


def distance_matrix(v: np.ndarray) -> np.ndarray:
    """The matrix D with the entries −½ (squared distance between two points of `v`)."""
    return -np.square(v[:, None] - v).sum(-1) / 2


def barycentric(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
    """The barycentric coordinates λ of x with Σλ = 1 and least norm ‖λ‖, and the residual norm."""
    system = np.vstack([v.T, np.ones(len(v))])
    weights = np.linalg.lstsq(system, np.append(x, 1), rcond=None)[0]
    return weights, float(np.linalg.norm(system @ weights - np.append(x, 1)))


LEMMA_4 = claim(
    "Lemma 4, Equation 43",
    r"Every $x$ is $\sum\lambda_iv_i$ with $\sum\lambda_i = 1$ if "
    r"$\operatorname{rank}(v_i - v_0) = n$ and $k \le n$",
    corrected=r"Lemma 4 holds for $k \ge n$, which Theorem 4 needs",
    remark=Remark(
        "hypothesis",
        r"For $k + 1$ vectors in $n$ dimensions, the assumptions $k \le n$ and rank $n$ imply $k "
        "= n$. Lemma 4 also holds for $k > n$, which Theorem 4 needs.",
    ),
    why=r"The differences $v_i - v_0$ span the space, so $x - v_0 = \sum t_i(v_i - v_0)$ and "
    r"$\lambda_0 = 1 - \sum t_i$.",
)


@LEMMA_4.equal("residual for k = n", tolerance=1e-11)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for n in (1, 2, 7):
        yield barycentric(rng.normal(size=n), rng.normal(size=(n + 1, n)))[1]


@LEMMA_4.equal("for k < n: residual of 4 points in R⁷", tolerance=0.1, form="overread")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    return barycentric(rng.normal(size=7), rng.normal(size=(4, 7)))[1]


@LEMMA_4.equal("residual for k ≥ n", tolerance=1e-11, form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for points in (9, 15):
        yield barycentric(rng.normal(size=7), rng.normal(size=(points, 7)))[1]


LEMMA_5 = claim(
    "Lemma 5, Equations 44 to 52",
    r"$\|a - b\|^2 = (\lambda - \mu)^\top D(\lambda - \mu)$, $D_{ij} = -\|v_i - v_j\|^2/2$",
    why=r"The matrix $D$ is $R^\top R$ minus terms that are constant along rows or columns. The "
    r"constant terms vanish because $\sum(\lambda_i - \mu_i) = 0$. Lemma 5 is true only if the "
    "coordinates of $a$ and the coordinates of $b$ have equal sums. Barycentric coordinates have "
    "the sum 1.",
)


@LEMMA_5.equal("each step, and the result", tolerance=1e-10)
def _(key: Key[Array, ""]) -> Cases:
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


@LEMMA_5.equal("for any coordinates", tolerance=0.1, form="overread")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    v, w = rng.normal(size=(8, 7)), 1 + rng.uniform(size=8)
    return float(w @ distance_matrix(v) @ w / np.square(w @ v).sum()) - 1


DEFINITION_1 = claim(
    "Definition 1, Equation 53", r"The ultra dimension of $v_0 + W$ is $\dim W$ or $\dim W + 1$"
)


@DEFINITION_1.equal("r and r + 1 in R⁶")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    inside, outside = rng.normal(size=5) @ w, rng.normal(size=6)
    points = rng.normal(size=(20, 5)) @ w
    ranks = [int(np.linalg.matrix_rank(points + v)) for v in (inside, outside)]
    return [ranks[0] - 5, ranks[1] - 6]


LEMMA_6 = claim(
    "Lemma 6, Equations 54 to 56",
    "Points of an affine hyperplane $P$ complete independent vectors to a basis, "
    "unless all of the vectors are in $P$",
    why="If no point of $P$ were independent of the vectors, $P$ would lie in the span of the "
    "vectors (Equation 54), but the dimension of the span is too small (Equations 55 and 56), or "
    "the span is $P$. The last line of the induction is for $n - k = l + 1$. Lemma 6 requires "
    "that not all vectors $a_i$ belong to the hyperplane $P$, which is needed only if "
    "$v_0$ is in the subspace $W$.",
)


@LEMMA_6.equal("rank minus n")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    for k, origin in ((1, rng.normal(size=6)), (3, rng.normal(size=6)), (2, np.zeros(6))):
        points = origin + rng.normal(size=(6 - k, 5)) @ w
        rows = np.vstack([rng.normal(size=(k, 6)), points])
        yield int(np.linalg.matrix_rank(rows)) - 6


@LEMMA_6.equal("rank n also if v₀ and all vectors are in W", form="overread")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    w = rng.normal(size=(5, 6))
    return float(np.linalg.matrix_rank(rng.normal(size=(6, 5)) @ w)) - 6
