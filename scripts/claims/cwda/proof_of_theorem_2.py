"""Claims in Appendix C of the pruning paper, which proves Theorem 2."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array

import pruning
from claims.cwda._draws import DIMS, THREE_FILTERS
from geometry.claims import Cases, Claim, Values

claim = partial(Claim, "CWDA")


def _laguerre(degree: float, a: float, x: np.ndarray) -> np.ndarray:
    """The generalized Laguerre function of any degree at x ≤ 0, as a sum of positive terms."""
    scale = math.gamma(degree + a + 1) / math.gamma(degree + 1) / math.gamma(a + 1)
    return scale * np.exp(x) * scipy.special.hyp1f1(a + 1 + degree, a + 1, -x)


PROPOSITION_7 = claim(
    "Proposition 7, Equations 26 to 28",
    r"$\partial^nL_p^{(\alpha)} = (-1)^nL_{p-n}^{(\alpha+n)}$, $L_{-1/2}^{(\alpha)} > 0$, and the "
    "slope of $T(x)$",
    why=r"At $x = -y \le 0$, $L_{-1/2}^{(\alpha)}$ is a sum of positive terms: Poisson "
    r"probabilities of mean $y$ times ratios of $\Gamma$. At $x > 0$, all terms of the power "
    r"series of $L_{-1/2}^{(\alpha)}$ are positive.",
)


@PROPOSITION_7.equal("derivatives by differences, n = 1 and 2", tolerance=1e-5)
def _() -> Cases:
    x, step = np.linspace(-3, -0.5, 6), 1e-3
    for degree, a in ((0.5, 3.5), (2.5, 1.0), (1.5, 0.5)):
        low, middle, high = (_laguerre(degree, a, x + shift) for shift in (-step, 0, step))
        yield (high - low) / (2 * step) / -_laguerre(degree - 1, a + 1, x) - 1
        if degree > 2:
            second = (high - 2 * middle + low) / step**2
            yield second / _laguerre(degree - 2, a + 2, x) - 1


@PROPOSITION_7.at_most("L_{−1/2} > 0 for α > 0, x from −50 to 50")
def _() -> Values:
    x = np.linspace(-50, 50, 60)
    return [-scipy.special.hyp1f1(0.5, a + 1, x) for a in (0.1, 0.5, 4.5, 32.0)]


@PROPOSITION_7.equal("the slope of T by differences", tolerance=1e-6)
def _() -> Cases:
    std, k, step = 1.7, 9, 1e-4
    for x in (0.3, 1.0, 4.0):
        ends = -np.square([x - step, x + step]) / (2 * std**2)
        low, high = _laguerre(0.5, k / 2 - 1, ends)
        slope = x / std**2 * _laguerre(-0.5, k / 2, np.array([-(x**2) / (2 * std**2)]))
        yield (high - low) / (2 * step) / slope - 1


def expected_distance() -> Array:
    """The mean distance E‖F − v‖ of a filter v in `three_filters` from a point F with ‖F‖ = 2."""
    return pruning.gaussian.expected_distance(jnp.asarray(2.0), 1.7, float(DIMS))


THEOREM_2_PROOF = claim(
    "Proof of Theorem 2, the sum of distances",
    r"For a point $F$ and $n$ filters $v_i$ from $N(0, \sigma^2I_k)$, the mean sum of distances "
    r"$E\,\sum\|F - v_i\|$ is $n\,\sigma^2\sqrt{\pi/2}\,L_{1/2}^{(k/2-1)}(-\|F\|^2/2\sigma^2)$",
    printed="Appendix C, before Equation 28: "
    r"“$E\,\sum\|F - v_i\|_2 = n \cdot \sigma^2\sqrt{\pi/2} \cdot L(-\|F\|^2/2\sigma^2)$”",
    corrected=r"The factor before the Laguerre function $L$ must contain $\sigma$, not $\sigma^2$",
    fault="misprint",
    why=r"A distance has the unit of $\sigma$. At $F = 0$, $\sigma = 1.7$ and $k = 9$, the mean "
    "distance is 4.96, but the printed form gives 8.43. The proof of Theorem 2 needs only the "
    "sign of the slope of the mean distance, which the factor does not change.",
)
THEOREM_2_PROOF.mean(
    "σ² √(π/2) L at ‖F‖ = 2, σ = 1.7, d = 9",
    lambda: 1.7 * expected_distance(),
    THREE_FILTERS,
    "distance_to_point",
    form="rejected",
)
THEOREM_2_PROOF.mean(
    "σ √(π/2) L", expected_distance, THREE_FILTERS, "distance_to_point", form="corrected"
)


@THEOREM_2_PROOF.equal("σ √(π/2) L, the Laguerre function", tolerance=1e-10, form="corrected")
def _() -> Values:
    y = np.array([-(2.0**2) / (2 * 1.7**2)])
    printed = 1.7 * math.sqrt(math.pi / 2) * _laguerre(0.5, DIMS / 2 - 1, y)
    return float(expected_distance()) / printed - 1
