"""Lemma 3 in Appendix D of the pruning paper.

The vectors x and y are independent draws from N(0, c²I) in k dimensions. A is (‖x‖² − ‖y‖²)², and B
is 2‖x‖‖y‖.
"""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Key

import pruning
from claims.draws import normal
from geometry.claims import Claim, Draws, Remark, Statistics, Values
from jaxnorm.internal import chi_mean

claim = partial(Claim, "CWDA")

K = 20
C = 0.05  # the standard deviation is not 1, so that checks fail if a unit is wrong


def _a_and_b(x: Array, y: Array) -> tuple[Array, Array]:
    a = jnp.square(jnp.square(x).sum(1) - jnp.square(y).sum(1))
    return a, 2 * jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(y, axis=1)


def lemma_3(key: Key[Array, ""]) -> Statistics:
    """Random draws of A, B, A/B and (‖x‖ − ‖y‖)²/B of Lemma 3, at c = 1 or at a small c."""
    x, y = normal(key, 2, 500, K)
    a, b = _a_and_b(x, y)
    gap = jnp.linalg.norm(x, axis=1) - jnp.linalg.norm(y, axis=1)
    return {
        "a": a,
        "b": b,
        "b_at_small_c": C**2 * b,
        "ratio": a / b,
        "ratio_at_small_c": C**2 * a / b,
        "squared_ratio": jnp.square(a / b),
        "squared_gap_over_b": jnp.square(gap) / b,
    }


LEMMA_3 = Draws(lemma_3, 400_000, batch_size=20_000, draws_per_key=500)


EQUATION_31 = claim(
    "Lemma 3, Equation 31",
    r"The variance of $B = 2\|X\|\|Y\|$ is $c^2 + 4c^4k$ (checked at $k = 20$)",
    printed="Lemma 3, before Equation 31: “For two random variables X,Y ∈ Rk follow N(0, c2 · Ik)"
    r" and they are i.i.d. When k is large enough”: $E(2\|X\|\|Y\|) = 2c^2k$, "
    r"$\operatorname{Var}(2\|X\|\|Y\|) = c^2 + 4c^4k$",
    corrected=r"The product $B$ has the mean $2c^2k - c^2 + \dots$ and the variance $4c^4k - 2c^4 "
    "+ O(c^4/k)$",
    fault="false",
    why="The variance of $B$ has the unit $c^4$, but the variance in Equation 31 has a term "
    "$c^2$. At $c = 0.05$ and $k = 20$, the variance in Equation 31 is six times the exact "
    "variance. The mean of $B$ in Equation 31 is right to leading order in $k$.",
)
EQUATION_31.variance(
    "c² + 4c⁴k at c = 0.05", C**2 + 4 * C**4 * K, LEMMA_3, "b_at_small_c", form="rejected"
)
EQUATION_31.variance(
    "4c⁴(k² − (k − 2h)²)",
    lambda: 4 * C**4 * (K**2 - chi_mean(K) ** 4),
    LEMMA_3,
    "b_at_small_c",
    form="corrected",
)


@EQUATION_31.equal(
    "the printed variance over the exact one at c = 0.05", 6.15, tolerance=0.01, form="corrected"
)
def _() -> Values:
    return (C**2 + 4 * C**4 * K) / (4 * C**4 * (K**2 - chi_mean(K) ** 4))


EQUATION_31.mean(
    "E B = 2c²(k − 2h)",
    lambda: 2 * chi_mean(K) ** 2,
    LEMMA_3,
    "b",
    against=2.0 * K,
    form="corrected",
)


def lemma_3_in_5(key: Key[Array, ""]) -> Statistics:
    """Random draws of Lemma 3's A in 5 dimensions; the printed variance of A is 19 % too small."""
    return {"a": _a_and_b(*normal(key, 2, 1000, 5))[0]}


NUMERATOR_IN_5 = Draws(lemma_3_in_5, 800_000, batch_size=50_000, draws_per_key=1000)


EQUATION_32 = claim(
    "Lemma 3, Equation 32",
    r"The variance of $A = (\|X\|^2 - \|Y\|^2)^2$ is $16c^8(2k^2 + 3k)$ (checked at $k = 5$)",
    printed="Lemma 3, Equation 32: “For two random variables X,Y ∈ Rk follow N(0, c2 · Ik) and "
    r"they are i.i.d. When k is large enough”: $\operatorname{Var}((\|X\|^2 - \|Y\|^2)^2) "
    "= 16c^8(2k^2 + 3k)$",
    corrected="The variance of $A$ is exactly $16c^8(2k^2 + 6k)$",
    fault="false",
    why=r"The variance of $A$ contains the fourth cumulant of $\|X\|^2 - \|Y\|^2$, which is "
    "$96c^8k$. The variance in Equation 32 contains only half of the fourth cumulant.",
)
EQUATION_32.variance("16c⁸(2k² + 3k)", 16.0 * 65, NUMERATOR_IN_5, "a", form="rejected")
EQUATION_32.variance("16c⁸(2k² + 6k)", 16.0 * 80, NUMERATOR_IN_5, "a", form="corrected")
EQUATION_32.mean("E A = 4c⁴k", 4.0 * K, LEMMA_3, "a")


def mean_ratio(k: int) -> float:
    """The mean E[A/B] of Lemma 3 at c = 1, which is 2(E‖x‖)²/(k − 1) in k dimensions."""
    return 2 * chi_mean(k) ** 2 / (k - 1)


def _second_order_mean(covariance: float) -> float:
    """E[A/B] ≈ EA/EB − `covariance`/(EB)² + Var(B) EA/(EB)³ (second order), at c = 1 and k = 20."""
    mean_a, mean_b = 4.0 * K, 2 * chi_mean(K) ** 2
    variance_b = 4 * (K**2 - chi_mean(K) ** 4)
    return mean_a / mean_b - covariance / mean_b**2 + variance_b * mean_a / mean_b**3


def covariance_of_a_and_b() -> float:
    """The covariance Cov(A, B) at c = 1 and k = 20, from the moments E‖x‖⁵ E‖x‖ and (E‖x‖³)²."""
    first, third, fifth = (float(pruning.gaussian.chi_moment(1.0, float(K), j)) for j in (1, 3, 5))
    return 4 * fifth * first - 4 * third**2 - 4 * K * 2 * first**2


EQUATIONS_29_AND_33 = claim(
    "Lemma 3, Equations 29 and 33",
    r"The mean of $A/B$ is $2c^2 + (4c^2k + 1)/(2k^2)$ for $A = (\|X\|^2 - \|Y\|^2)^2$ and $B = "
    r"2\|X\|\|Y\|$ (checked at $k = 20$)",
    printed="Lemma 3, Equation 29: “For two random variables X,Y ∈ Rk follow N(0, c2 · Ik) and "
    r"they are i.i.d. When k is large enough”, $E(A/B) \approx 2c^2 + (4c^2k + 1)/(2k^2)$; "
    r"Equation 33: $E(A/B) \approx EA/EB + \operatorname{Var}(B) \cdot EA/(EB)^3$",
    corrected=r"The mean of $A/B$ is exactly $4c^2R^2/(k - 1) = 2c^2 + c^2/k + \dots$ with $R = "
    r"\Gamma((k + 1)/2)/\Gamma(k/2)$. Equation 33 lacks the term $-\operatorname{Cov}(A, "
    "B)/(EB)^2$",
    fault="false",
    why="Equation 33 is derived from Equation 21, which lacks a mixed term. The term that "
    r"Equation 33 lacks is about $-2c^2/k$, and cancels the term with $\operatorname{Var}(B)$ in "
    "Equation 33.",
)
EQUATIONS_29_AND_33.mean(
    "2c² + (4c²k + 1)/(2k²) at c = 0.05",
    2 * C**2 + (4 * C**2 * K + 1) / (2 * K**2),
    LEMMA_3,
    "ratio_at_small_c",
    form="rejected",
)
EQUATIONS_29_AND_33.mean(
    "4c²R²/(k − 1)", lambda: C**2 * mean_ratio(K), LEMMA_3, "ratio_at_small_c", form="corrected"
)
EQUATIONS_29_AND_33.mean(
    "EA/EB + Var(B) EA/(EB)³ at c = 1: 2.156",
    lambda: _second_order_mean(0.0),
    LEMMA_3,
    "ratio",
    form="rejected",
)
EQUATIONS_29_AND_33.mean(
    "with − Cov(A, B)/(EB)² to second order: 2.053",
    lambda: _second_order_mean(covariance_of_a_and_b()),
    LEMMA_3,
    "ratio",
    within=1 / K**2,
    against=lambda: _second_order_mean(0.0),
    form="corrected",
)


def lemma_3_in_12(key: Key[Array, ""]) -> Statistics:
    """Random draws of Lemma 3's ratio A/B in 12 dimensions."""
    a, b = _a_and_b(*normal(key, 2, 1000, 12))
    return {"ratio": a / b}


RATIO_IN_12 = Draws(lemma_3_in_12, 1_200_000, batch_size=20_000, draws_per_key=1000)


EQUATION_30 = claim(
    "Lemma 3, Equation 30",
    r"For large $k$, $\operatorname{Var}(A/B) \lesssim 8c^4 + (16c^4k + c^2)/k^2$ (checked at $c "
    "= 1$, $k = 12$)",
    covers="Figure 10",
    printed="Lemma 3, Equation 30: “For two random variables X,Y ∈ Rk follow N(0, c2 · Ik) and "
    r"they are i.i.d. When k is large enough”: $\operatorname{Var}(A/B) \lesssim 8c^4 + "
    "(16c^4k + c^2)/k^2$",
    corrected=r"The variance of $A/B$ is $8c^4 + 20c^4/k + \dots$",
    remark=Remark(
        "unit",
        r"The bound of $\operatorname{Var}(A/B)$ in Equation 30 holds only to leading order in "
        r"$k$. At $c = 1$ and $k = 20$, $\operatorname{Var}(A/B)$ exceeds the bound by 3.6 %. The "
        "terms $c^2$ and $c^4$ of Equation 30 have different units.",
    ),
    why="The exact variance of $A/B$ follows from $E(A/B)^2 = 12c^4k/(k - 2)$. Figure 10 of the "
    "pruning paper has no numbers.",
)
EQUATION_30.variance(
    "≲ 8c⁴ + (16c⁴k + c²)/k²",
    8 + (16 * 12 + 1) / 12**2,
    RATIO_IN_12,
    "ratio",
    side="≤",
    form="overread",
)
EQUATION_30.variance(
    "12c⁴k/(k − 2) − (E A/B)²",
    lambda: 12 * 12 / 10 - mean_ratio(12) ** 2,
    RATIO_IN_12,
    "ratio",
    form="corrected",
)
EQUATION_30.mean(
    "E(A/B)² = 12c⁴k/(k − 2)", 12 * K / (K - 2), LEMMA_3, "squared_ratio", form="corrected"
)
