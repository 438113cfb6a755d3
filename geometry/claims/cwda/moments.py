"""Appendices A to C of the pruning paper: moments of norms, proofs of Theorems 1 and 2."""

import math

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.special
import scipy.stats
from jaxtyping import Array, Key

import pruning
from geometry.claims._draws import exponent
from geometry.claims._types import Cases, Computed, Remark, Sampled, Values, claims_of
from geometry.claims.cwda._draws import DIMS, THREE_FILTERS, norm_cv2

claim = claims_of("CWDA")


def amoroso(key: Key[Array, ""]) -> Cases:
    """Moments by quadrature over `amoroso_moment`, minus 1."""

    def integrand(z: float, order: int, alpha: float, beta: float) -> float:
        return z ** (order + alpha * beta - 1) * math.exp(-(z**beta)) * beta / math.gamma(alpha)

    for theta, alpha, beta in ((1.5, 1.5, 2.0), (2.0, 0.7, 1.3), (0.5, 4.5, 2.0)):
        for order in (1, 2):
            integral = scipy.integrate.quad(integrand, 0, 30, args=(order, alpha, beta))[0]
            moment = float(pruning.amoroso_moment(0, theta, alpha, beta, order))
            yield theta**order * integral / moment - 1


def amoroso_without_variance(key: Key[Array, ""]) -> Values:
    """The printed second moment where the integral diverges: it should not be negative."""
    theta, alpha, beta = 1.5, 1.5, -1.0
    first, second = (math.gamma(alpha + j / beta) / math.gamma(alpha) for j in (1, 2))
    return -(theta**2) * (second - first**2)


def amoroso_infinite(key: Key[Array, ""]) -> Values:
    """1 unless the second moment is said to be infinite."""
    return float(np.isfinite(float(pruning.amoroso_moment(0, 1.5, 1.5, -1.0, 2))))


PROPOSITION_1 = claim(
    "Proposition 1, Equations 11 to 13",
    "Moments of the Amoroso distribution: θʲ Γ(α + j/β)/Γ(α)",
    Computed("quadrature", amoroso),
    Computed.rejected(
        "the second moment is not negative, θ = α = 1.5, β = −1",
        amoroso_without_variance,
        "inequality",
    ),
    Computed.corrected("it is infinite", amoroso_infinite),
    printed="no condition",
    corrected="for α + j/β > 0",
)


def half_normal(key: Key[Array, ""]) -> Values:
    """`half_normal_moment` over its formula, minus 1."""
    return [
        float(pruning.half_normal_moment(1.7, j))
        / (1.7**j * 2 ** (j / 2) * math.gamma((j + 1) / 2) / math.pi**0.5)
        - 1
        for j in (1, 2, 3, 4, 5.5)
    ]


PROPOSITION_2 = claim(
    "Proposition 2, Equations 14 and 15",
    "|x| of N(0, σ²): mean σ√(2/π), variance σ²(1 − 2/π)",
    Computed("real orders", half_normal),
    Sampled("mean", (2 / math.pi) ** 0.5, THREE_FILTERS, "first_size"),
    Sampled("variance", 1 - 2 / math.pi, THREE_FILTERS, "first_size", "variance"),
    Sampled("Var l1 = d(1 − 2/π)", DIMS * (1 - 2 / math.pi), THREE_FILTERS, "l1", "variance"),
)


def chi_distribution(key: Key[Array, ""]) -> Cases:
    """Means and variances over those of SciPy's chi distribution, minus 1."""
    for k in (1, 2, 9, 64):
        distribution = scipy.stats.chi(k, scale=1.3)
        yield float(pruning.chi_moment(1.3, float(k), 1)) / distribution.mean() - 1
        yield float(pruning.gaussian.chi_variance(1.3, float(k))) / distribution.var() - 1


def chi_defects(key: Key[Array, ""]) -> Values:
    """Var‖v‖/2 = h(k) minus 1/4, and minus that of the next dimension."""
    h = np.asarray(pruning.gaussian.chi_variance(1.0, jnp.arange(1, 2001).astype(float))) / 2
    return [h - 0.25, -np.diff(h)]


PROPOSITION_3 = claim(
    "Proposition 3, Equations 16 and 17",
    "‖v‖ⱼ of N(0, σ²I): 2^(j/2) σʲ Γ((k + j)/2)/Γ(k/2)",
    Computed("SciPy's chi", chi_distribution),
    Computed("h(k) grows and is below 1/4", chi_defects, "inequality", tolerance=1e-12),
)


def stirling(key: Key[Array, ""]) -> Values:
    """Exponent of Stirling's relative error."""
    x = np.array([10.0, 30, 100, 300])
    ratio = scipy.special.gammaln(x + 1) - (0.5 * np.log(2 * math.pi * x) + x * (np.log(x) - 1))
    return exponent(list(x), np.expm1(ratio))


PROPOSITION_4 = claim(
    "Proposition 4, Equation 18",
    "Γ(x + 1) ~ √(2πx)(x/e)ˣ",
    Computed("relative error ~ 1/x", stirling, "limit", -1.0, 0.05),
)

PROPOSITION_5 = claim(
    "Proposition 5, Equation 19 (FKG)",
    "E f g ≥ E f E g for increasing f and g on Rⁿ",
    Sampled.rejected(
        "E x₁x₂ ≥ 0 at X = (z, −z)", 0.0, THREE_FILTERS, "product_of_opposites", side="≥"
    ),
    Sampled.corrected(
        "Cov(l1, l2) ≥ 0: increasing in |x₁|, …, |xₙ|",
        0.0,
        THREE_FILTERS,
        "l1_l2_covariance",
        side="≥",
    ),
    printed="any X",
    corrected="independent coordinates, here |x₁|, …, |xₙ|",
)


def delta_method_rate(key: Key[Array, ""]) -> Values:
    """Exponent of the relative error of Lemma 1 for l1/l2."""
    dims = (64, 256, 1024, 4096)
    approximate = np.array([(math.pi / 2 - 1) / n - norm_cv2(n) for n in dims])
    exact = np.array([pruning.l1_l2_ratio_variance(n)[0] for n in dims])
    return exponent(dims, approximate / exact - 1)


PROPOSITION_6 = claim(
    "Proposition 6, Equations 20 and 21, Lemma 1, Equation 22",
    "Var(X/Y) ≈ (EX/EY)²(CVₓ² + CVᵧ² − 2Cov/(EX EY))",
    Computed("relative error ~ 1/n for l1/l2", delta_method_rate, "limit", -1.0, 0.1),
    remark=Remark("over-reading", "asymptotic"),
)


def gamma_ratios(key: Key[Array, ""]) -> Values:
    """Exponents with which R²/x tends to 1/2 and x/2 − R² to 1/4."""
    x = np.array([20.0, 80, 320, 1280])
    h = np.asarray(pruning.gaussian.chi_variance(1.0, jnp.asarray(x))) / 2
    return [exponent(list(x), (x / 2 - h) / x - 0.5), exponent(list(x), h - 0.25)]


LEMMA_2 = claim(
    "Lemma 2, Equations 23 and 24",
    "R(x)²/x → 1/2 and x/2 − R(x)² → 1/4",
    Computed("both errors ~ 1/x", gamma_ratios, "limit", -1.0, 0.05),
)

FIGURE_9 = claim(
    "Figure 9",
    "Ratio variances of the layers of trained ResNets follow 1/n",
    reason="of trained networks; Theorem 1 has the constant to compare with, 0.0708/n",
)


def laguerre(key: Key[Array, ""]) -> Values:
    """−L_{−1/2}^{(k/2)}(−y), to which the slope of E‖F − v‖ is proportional."""
    y = np.linspace(0, 50, 60)
    return [-scipy.special.hyp1f1(0.5, a + 1, -y) for a in (-0.4, 0.5, 4.5, 32.0)]


def expected_distance() -> Array:
    """E‖F − v‖ of `three_filters`, ‖F‖ = 2."""
    return pruning.gaussian.expected_distance(jnp.asarray(2.0), 1.7, float(DIMS))


PROPOSITION_7 = claim(
    "Proposition 7, Equations 26 to 28",
    "E‖F − v‖ = σ²√(π/2) L(−‖F‖²/2σ²), with a slope that L_{−1/2} > 0 makes positive",
    Computed("L_{−1/2} > 0", laguerre, "inequality"),
    Sampled.rejected(
        "σ² √(π/2) L at ‖F‖ = 2, σ = 1.7, d = 9",
        lambda: 1.7 * expected_distance(),
        THREE_FILTERS,
        "distance_to_point",
    ),
    Sampled.corrected("σ √(π/2) L", expected_distance, THREE_FILTERS, "distance_to_point"),
    printed="σ²",
    corrected="σ",
)
