"""Claims in Appendix B of the pruning paper, which proves Theorem 1."""

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.special
import scipy.stats

import pruning
from claims.cwda._draws import THREE_FILTERS, norm_cv2
from claims.cwda._networks import of_resnet20
from claims.draws import exponent
from geometry.claims import Claim, Values

claim = partial(Claim, "CWDA")


def _stirling_error(x: np.ndarray) -> np.ndarray:
    """The relative error of Γ(x + 1) against Stirling's formula: their ratio minus 1."""
    ratio = scipy.special.gammaln(x + 1) - (0.5 * np.log(2 * math.pi * x) + x * (np.log(x) - 1))
    return np.expm1(ratio)


PROPOSITION_4 = claim(
    "Proposition 4, Equation 18", r"$\Gamma(x + 1) \thicksim \sqrt{2\pi x}\,(x/e)^x$"
)


@PROPOSITION_4.rate("relative error ~ 1/x", -1.0, tolerance=0.05)
def _() -> Values:
    x = np.array([10.0, 30, 100, 300])
    return exponent(list(x), _stirling_error(x))


@PROPOSITION_4.equal("the relative error is 1/(12x)", 1.0, tolerance=5e-3)
def _() -> Values:
    x = np.array([100.0, 300])
    return 12 * x * _stirling_error(x)


PROPOSITION_5 = claim(
    "Proposition 5, Equation 19 (FKG)",
    r"For increasing functions $f$ and $g$ on $\mathbb{R}^n$, the mean of the product is at least "
    r"the product of the means, $E\,f\,g \ge E\,f\,E\,g$",
    printed=r"Proposition 5: “If f and g are increasing functions on Rn”, $E(f)E(g) \le E(fg)$",
    corrected="The coordinates of the random vector must be independent. For norms of filters, "
    r"the coordinates are the absolute values $|x_1|, \dots, |x_n|$ of the weights",
    fault="false in a case",
    why="The functions $f = x_1$ and $g = x_2$ are increasing, but for the vector $(z, -z)$ with "
    r"a standard normal $z$, the mean of $f g$ is $-1$, which is less than $E\,f\,E\,g = 0$.",
)
PROPOSITION_5.mean(
    "E x₁x₂ ≥ 0 at X = (z, −z)",
    0.0,
    THREE_FILTERS,
    "product_of_opposites",
    side="≥",
    form="rejected",
)
PROPOSITION_5.mean(
    "E x₁x₂ = −1 at X = (z, −z)", -1.0, THREE_FILTERS, "product_of_opposites", form="corrected"
)
PROPOSITION_5.mean(
    "Cov(l1, l2) ≥ 0, increasing in |x₁|, …, |xₙ|: found CV₂²",
    0.0,
    THREE_FILTERS,
    "l1_l2_covariance",
    side="≥",
    form="corrected",
)


STEPS = (1e-2, 1e-3, 1e-4)


def _remainders(cross: float) -> list[float]:
    """x/y at (1 + t, 1 + 2t) minus its second-order expansion at (1, 1), for each t in `STEPS`.

    In the expansion, the mixed second-order term is multiplied by `cross`.
    """
    return [
        (1 + t) / (1 + 2 * t) - (1 + t - 2 * t) - (2 * t) ** 2 + cross * 2 * t**2 for t in STEPS
    ]


EQUATION_20 = claim(
    "Proposition 6, Equation 20",
    "Equation 20 is Taylor's expansion of $f(X, Y)$ to first order about the means",
)


@EQUATION_20.rate("remainder of x/y ~ t²", 2.0, tolerance=0.05)
def _() -> Values:
    return exponent(STEPS, [(1 + t) / (1 + 2 * t) - (1 - t) for t in STEPS])


EQUATION_21 = claim(
    "Proposition 6, Equation 21",
    "Equation 21 is Taylor's expansion of $f(X, Y)$ to second order about the means",
    printed=r"Equation 21: $f = f(EX, EY) + \sum(X - EX)\,\partial f/\partial X + \frac12\sum(X - "
    r"EX)^\top\,\partial^2f/\partial X^2\,(X - EX) + \text{Remainder}_2$ “according "
    "to Taylor theorem”, with sums over $X$ and $Y$",
    corrected="The second-order expansion needs the mixed term $(X - EX)(Y - "
    r"EY)\,\partial^2f/\partial X\partial Y$",
    fault="false",
    why="Without the mixed term, the remainder of the expansion is of second order. Equation 33 "
    "is derived from Equation 21, and therefore lacks a covariance.",
)


@EQUATION_21.rate("remainder of x/y ~ t³", 3.0, tolerance=0.05, form="rejected")
def _() -> Values:
    return exponent(STEPS, _remainders(0.0))


@EQUATION_21.rate(
    "remainder of x/y with the mixed term ~ t³", 3.0, tolerance=0.05, form="corrected"
)
def _() -> Values:
    return exponent(STEPS, _remainders(1.0))


def _delta_method_errors(dims: tuple[int, ...]) -> np.ndarray:
    """For each size in `dims`, the relative errors of Lemma 1's variances of l1/l2 and l2/l1."""
    approximate = np.array([(math.pi / 2 - 1) / n - norm_cv2(n) for n in dims])
    exact = np.array([pruning.l1_l2_ratio_variance(n) for n in dims])
    return approximate[:, None] / exact - 1


LEMMA_1 = claim(
    "Lemma 1, Equation 22",
    r"To second order, the variance of a ratio $X/Y$ is $(EX/EY)^2(\text{CV}_x^2 + \text{CV}_y^2 "
    r"- 2\operatorname{Cov}(X, Y)/(EX\,EY))$",
    printed="Lemma 1, before Equation 22: “Let X and Y are random variables. Then we have such an "
    "estimation”",
    corrected="The formula is an approximation for $X$ and $Y$ with small relative deviations "
    "from their means, and for $Y$ away from 0",
    fault="false in a case",
    why="Equation 22 is the variance of the first-order expansion of $X/Y$. If $X$ is $N(3, 1)$ "
    "and $Y$ is $N(5, 1)$, Equation 22 gives a finite number, but the variance of $X/Y$ is "
    "infinite.",
)


@LEMMA_1.rate("relative errors ~ 1/n for l1/l2 and l2/l1", -1.0, tolerance=0.1, form="corrected")
def _() -> Values:
    dims = (64, 256, 1024, 4096)
    return [exponent(dims, errors) for errors in _delta_method_errors(dims).T]


@LEMMA_1.equal(
    "n × the relative errors, predicted from the next terms of the expansion",
    tolerance=5e-3,
    form="corrected",
)
def _() -> Values:
    found = 4096 * _delta_method_errors((4096,))[0]
    third = np.array([5 / 8 - math.pi / 4, 2 * math.pi**2 - 33 / 4 * math.pi + 49 / 8])
    return found - (-1 / 8 - third) / ((math.pi - 3) / 2)


@LEMMA_1.equal(
    "Equation 22 is within 10 % of Var(X/Y) for N(3, 1)/N(5, 1), given Y > 1",
    1.0,
    tolerance=0.1,
    form="rejected",
)
def _() -> Values:

    def inverse_moment(order: int) -> float:
        def integrand(y: float) -> float:
            return float(scipy.stats.truncnorm.pdf(y, -4, np.inf, loc=5)) / y**order

        return scipy.integrate.quad(integrand, 1, 20)[0]

    first, second = inverse_moment(1), inverse_moment(2)
    return ((9 + 1) * second - 9 * first**2) / ((3 / 5) ** 2 * (1 / 9 + 1 / 25))


def _gamma_ratios() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers x, R²/x − 1/2 and x/2 − R² − 1/4, where R = Γ((x + 1)/2)/Γ(x/2)."""
    x = np.array([20.0, 80, 320, 1280])
    h = np.asarray(pruning.gaussian.chi_variance(1.0, jnp.asarray(x))) / 2
    return x, (x / 2 - h) / x - 0.5, h - 0.25


LEMMA_2 = claim(
    "Lemma 2, Equations 23 and 24",
    r"$R(x)^2/x \to 1/2$ and $x/2 - R(x)^2 \to 1/4$",
    why="The proof of Lemma 2 uses Stirling's formula, which has a relative error of $1/(12x)$, "
    "in a difference of two terms. The result of Lemma 2 is right, because the errors of the "
    "two terms cancel.",
)


@LEMMA_2.rate("both errors ~ 1/x", -1.0, tolerance=0.05)
def _() -> Values:
    x, square, defect = _gamma_ratios()
    return [exponent(list(x), square), exponent(list(x), defect)]


@LEMMA_2.equal("the two errors are −1/(4x) and −1/(16x)", 1.0, tolerance=1e-3)
def _() -> Values:
    x, square, defect = _gamma_ratios()
    return [-4 * x[-1] * square[-1], -16 * x[-1] * defect[-1]]


def variances_of_ratios(found: Any) -> str:
    """A sentence with n Var(l1/l2) in a network's layers and for Gaussian filters, with n weights.

    Before the variance is computed, l1 and l2 are scaled to mean 1.
    """
    variances = []
    for layer in found["layers"]:
        l1, l2 = (np.array(layer["scores"][name]) for name in ("l1", "l2"))
        variances.append(layer["dims"] * np.var(l1 / l1.mean() / (l2 / l2.mean()), ddof=1))
    return (
        f"n Var(l1/l2) is between {min(variances):.3f} and {max(variances):.2f}, with the median "
        f"{np.median(variances):.3f}, in {len(variances)} layers of one trained ResNet-20; for "
        f"Gaussian filters, n Var(l1/l2) is {(math.pi - 3) / 2:.3f}"
    )


FIGURE_9 = claim(
    "Figure 9",
    "In the layers of trained ResNets, the variances of the ratios follow $1/n$",
    results=(of_resnet20("“the estimation O(1/n) … is appropriate”", variances_of_ratios),),
    why="Any variance of $O(1/n)$ looks like $1/n$ in Figure 9. The ratio of two norms does not "
    "change with the scale of the filter, so Figure 9 cannot show that filters have different "
    "scales, which Figure 1 shows.",
    reason="The paper used trained networks that we do not have. Our numbers come from a trained "
    "ResNet-20.",
)
