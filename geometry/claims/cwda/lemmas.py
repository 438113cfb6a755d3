"""Appendix D of the pruning paper: Lemma 3 and the proof of Theorem 3.

x and y are independent from N(0, c²I) in k dimensions, A = (‖x‖² − ‖y‖²)² and B = 2‖x‖‖y‖.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

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
from geometry.claims.cwda._draws import norm_cv2
from jaxnorm._numerics import chi_mean

claim = claims_of("CWDA")

K = 20
C = 0.05  # a standard deviation that shows wrong units


def _a_and_b(x: Array, y: Array) -> tuple[Array, Array]:
    a = jnp.square(jnp.square(x).sum(1) - jnp.square(y).sum(1))
    return a, 2 * jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(y, axis=1)


def lemma_3(key: Key[Array, ""]) -> Statistics:
    """A and B at c = 1, and what checks read of them."""
    x, y = normal(key, 2, 500, K)
    a, b = _a_and_b(x, y)
    gap = jnp.linalg.norm(x, axis=1) - jnp.linalg.norm(y, axis=1)
    return {
        "a": a,
        "b": b,
        "b_at_small_c": C**2 * b,
        "ratio_at_small_c": C**2 * a / b,
        "squared_ratio": jnp.square(a / b),
        "squared_gap_over_b": jnp.square(gap) / b,
    }


LEMMA_3 = Draws(lemma_3, 400_000, batch_size=20_000, draws_per_key=500)

EQUATION_31 = claim(
    "Lemma 3, Equation 31",
    "Var(2‖x‖‖y‖), k = 20",
    Sampled.rejected(
        "c² + 4c⁴k at c = 0.05", C**2 + 4 * C**4 * K, LEMMA_3, "b_at_small_c", "variance"
    ),
    Sampled.corrected(
        "4c⁴(k² − (k − 2h)²)",
        4 * C**4 * (K**2 - chi_mean(K) ** 4),
        LEMMA_3,
        "b_at_small_c",
        "variance",
    ),
    Sampled("E B = 2(k − 2h)", 2 * chi_mean(K) ** 2, LEMMA_3, "b"),
    printed="c² + 4c⁴k",
    corrected="4c⁴k − 2c⁴ + O(c⁴/k)",
)


def lemma_3_in_5(key: Key[Array, ""]) -> Statistics:
    """A in 5 dimensions, where the printed variance is farthest off."""
    return {"a": _a_and_b(*normal(key, 2, 1000, 5))[0]}


NUMERATOR_IN_5 = Draws(lemma_3_in_5, 800_000, batch_size=50_000, draws_per_key=1000)

EQUATION_32 = claim(
    "Lemma 3, Equation 32",
    "Var (‖x‖² − ‖y‖²)², k = 5",
    Sampled.rejected("16c⁸(2k² + 3k)", 16.0 * 65, NUMERATOR_IN_5, "a", "variance"),
    Sampled.corrected("16c⁸(2k² + 6k)", 16.0 * 80, NUMERATOR_IN_5, "a", "variance"),
    Sampled("E A = 4c⁴k", 4.0 * K, LEMMA_3, "a"),
    printed="16c⁸(2k² + 3k)",
    corrected="16c⁸(2k² + 6k), exact",
)


def _mean_ratio(k: int) -> float:
    """E A/B at c = 1: 4R²/(k − 1) = 2(E‖x‖)²/(k − 1)."""
    return 2 * chi_mean(k) ** 2 / (k - 1)


EQUATIONS_29_AND_33 = claim(
    "Lemma 3, Equations 29 and 33",
    "E A/B at c = 0.05, k = 20",
    Sampled.rejected(
        "2c² + (4c²k + 1)/(2k²)",
        2 * C**2 + (4 * C**2 * K + 1) / (2 * K**2),
        LEMMA_3,
        "ratio_at_small_c",
    ),
    Sampled.corrected("4c²R²/(k − 1)", C**2 * _mean_ratio(K), LEMMA_3, "ratio_at_small_c"),
    printed="2c² + (4c²k + 1)/(2k²)",
    corrected="4c²R²/(k − 1) = 2c² + c²/k + …, exact",
)


def lemma_3_in_12(key: Key[Array, ""]) -> Statistics:
    """A/B in 12 dimensions."""
    a, b = _a_and_b(*normal(key, 2, 1000, 12))
    return {"ratio": a / b}


RATIO_IN_12 = Draws(lemma_3_in_12, 1_200_000, batch_size=20_000, draws_per_key=1000)

EQUATION_30 = claim(
    "Lemma 3, Equation 30",
    "Var A/B at c = 1, k = 12",
    Sampled.rejected(
        "≲ 8c⁴ + (16c⁴k + c²)/k²",
        8 + (16 * 12 + 1) / 12**2,
        RATIO_IN_12,
        "ratio",
        "variance",
        side="≤",
    ),
    Sampled.corrected(
        "12c⁴k/(k − 2) − (E A/B)²",
        12 * 12 / 10 - _mean_ratio(12) ** 2,
        RATIO_IN_12,
        "ratio",
        "variance",
    ),
    Sampled.corrected("E(A/B)² = 12c⁴k/(k − 2)", 12 * K / (K - 2), LEMMA_3, "squared_ratio"),
    printed="≲ 8c⁴ + (16c⁴k + c²)/k²",
    corrected="8c⁴ + 20c⁴/k + …, exact",
)


def lemma_3_units(key: Key[Array, ""]) -> Values:
    """A/B over c² of small and of large vectors, over one another, minus 1."""
    x, y = generator(key).normal(size=(2, 300, 30))

    def ratio(c: float) -> np.ndarray:
        u, v = np.square(c * x).sum(1), np.square(c * y).sum(1)
        return (u - v) ** 2 / (2 * np.sqrt(u * v)) / c**2

    return ratio(0.01) / ratio(10.0) - 1


EQUATION_34 = claim(
    "Equation 34, Figure 10",
    "2xy ≫ (x² − y²)² for small c",
    Computed.corrected("A/B over c² does not depend on c", lemma_3_units),
    Sampled.corrected(
        "E (x − y)²/(2xy) = 2R²/(k − 1) − 1", _mean_ratio(K) / 2 - 1, LEMMA_3, "squared_gap_over_b"
    ),
    printed="small c",
    corrected="(x − y)² ≪ 2xy, like 1/(2k), at every c",
    remark=Remark("unit", "units differ"),
)


def _lagrange(key: Array, power: int) -> Cases:
    """nΣa² − (Σa)² − Σ(aᵖ − bᵖ)² over nΣa², p = `power`."""
    for a in generator(key).uniform(size=(50, 7)):
        pairs = sum((x**power - y**power) ** 2 for x, y in itertools.combinations(a, 2))
        left = 7 * np.square(a).sum()
        yield float((left - a.sum() ** 2 - pairs) / left)


def lagrange_printed(key: Key[Array, ""]) -> Cases:
    return _lagrange(key, 2)


def lagrange(key: Key[Array, ""]) -> Cases:
    return _lagrange(key, 1)


LAGRANGE_IDENTITY = claim(
    "Lagrange's identity in the proof of Theorem 3",
    "nΣa² = (Σa)² + Σ(a² − b²)²",
    Computed.rejected("as printed", lagrange_printed, tolerance=1e-6),
    Computed.corrected("nΣa² = (Σa)² + Σ(a − b)²", lagrange, tolerance=1e-12),
    printed="(a² − b²)²",
    corrected="(a − b)²",
)


def theorem_3_chain(key: Key[Array, ""]) -> Values:
    """2nk × squared CV of Σr/Σr², n/Σr, Σr²/Σr and Σr/n over first-order theory, n = 50, k = 10."""
    n, k = 50, 10
    r = np.sqrt(generator(key).chisquare(k, (200_000, n)))
    s1, s2 = r.sum(1), np.square(r).sum(1)
    theory = norm_cv2(k) / n
    return [float(np.var(x) / np.mean(x) ** 2 / theory) for x in (s1 / s2, n / s1, s2 / s1, s1 / n)]


EQUATIONS_35_TO_41 = claim(
    "Equations 35 to 41, Figure 11",
    "Σr/Σr², n/Σr, Σr²/Σr and Σr/n have the relative variance 1/(2nk)",
    Computed("over (q − 1)/n", theorem_3_chain, predicted=1.0, tolerance=0.03),
    corrected="(q − 1)/n, at every k",
)
