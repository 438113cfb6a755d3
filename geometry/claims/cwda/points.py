"""Appendices E to H of the pruning paper: points of a space, proof of Theorem 5."""

import math

import numpy as np
import scipy.stats
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Sampled, Values, claims_of
from geometry.claims.cwda._draws import DIMS, THREE_FILTERS
from geometry.filters import gaussian_filter_geometry

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
)


def _barycentric(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
    """Coordinates λ of least norm with Σλ = 1, and the residual of x."""
    system = np.vstack([v.T, np.ones(len(v))])
    weights = np.linalg.lstsq(system, np.append(x, 1), rcond=None)[0]
    return weights, float(np.linalg.norm(system @ weights - np.append(x, 1)))


def barycentric_of_few(key: Key[Array, ""]) -> Values:
    """Residual of a point of R⁷ for 4 points v, which the printed condition k ≤ n admits."""
    rng = generator(key)
    return _barycentric(rng.normal(size=7), rng.normal(size=(4, 7)))[1]


def barycentric(key: Key[Array, ""]) -> Values:
    """Residuals of points of R⁷ for 8 or more points v."""
    rng = generator(key)
    return [_barycentric(rng.normal(size=7), rng.normal(size=(n, 7)))[1] for n in (8, 9, 15)]


LEMMA_4 = claim(
    "Lemma 4, Equation 43",
    "Every x is Σλᵢvᵢ with Σλᵢ = 1 if rank(vᵢ − v₀) = n, k ≤ n",
    Computed.rejected("residual of 4 points in R⁷", barycentric_of_few, tolerance=0.1),
    Computed.corrected("residual for k ≥ n", barycentric, tolerance=1e-11),
    printed="k ≤ n",
    corrected="k ≥ n",
)


def distance_form(key: Key[Array, ""]) -> Cases:
    """‖a − b‖² minus wᵀDw, w = λ − μ, relative."""
    rng = generator(key)
    for n in (8, 12):
        v, a, b = rng.normal(size=(n, 7)), *rng.normal(size=(2, 7))
        w = _barycentric(a, v)[0] - _barycentric(b, v)[0]
        d = -np.square(v[:, None] - v).sum(-1) / 2
        yield float(w @ d @ w / np.square(a - b).sum()) - 1


LEMMA_5 = claim(
    "Lemma 5, Equations 44 to 52",
    "‖a − b‖² = (λ − μ)ᵀD(λ − μ), Dᵢⱼ = −‖vᵢ − vⱼ‖²/2",
    Computed("relative difference", distance_form),
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
    "The ultra dimension of v₀ + W is dim W, or one more",
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


LEMMA_6 = claim(
    "Lemma 6, Equations 54 to 56",
    "Points of an affine hyperplane complete independent vectors to a basis",
    Computed("rank minus n", completed_bases),
)


def concentrated_norms(key: Key[Array, ""]) -> Cases:
    """P(|r − E r| > c √(M/2)) minus 1/M, exactly."""
    for k in (1, 2, 9, 100):
        chi = scipy.stats.chi(k)
        for m in (2.5, 5, 20):
            width = math.sqrt(m / 2)
            tails = chi.sf(chi.mean() + width) + chi.cdf(chi.mean() - width)
            yield float(tails) - 1 / m


EQUATIONS_82_TO_84 = claim(
    "Equations 82 to 84",
    "P(|r − √2 c R| ≤ c√(M/2)) ≥ 1 − 1/M",
    Computed("exactly, k = 1 to 100", concentrated_norms, "inequality"),
    remark=Remark("hypothesis", "holds for every k"),
)

EQUATIONS_85_TO_88 = claim(
    "Equations 85 to 88",
    "Var(vᵢₚvⱼₚ) = 1, so that ⟨vᵢ, vⱼ⟩/√k is N(0, 1)",
    Sampled.rejected(
        "Var⟨vᵢ, vⱼ⟩/k = 1 at c = 0.7", 1.0, THREE_FILTERS, "inner_product", "variance"
    ),
    Sampled.corrected("Var⟨vᵢ, vⱼ⟩/k = c⁴", 0.49**2, THREE_FILTERS, "inner_product", "variance"),
    Sampled(
        "Var cos = 1/k",
        lambda: gaussian_filter_geometry(DIMS).cosine_variance,
        THREE_FILTERS,
        "cosine",
        "variance",
    ),
    printed="1",
    corrected="c⁴; divided by the norms 1/k, exactly",
)

APPENDICES_G_AND_H = claim(
    "Appendices G and H",
    "Statistical tests and details of the experiments",
    reason="the appendices are headings without content",
)
