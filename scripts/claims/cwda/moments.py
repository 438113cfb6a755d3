"""Claims in Appendix A of the pruning paper, which is on moments of norms."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.special
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import DIMS, THREE_FILTERS
from geometry.claims import Cases, Claim, Values

claim = partial(Claim, "CWDA")


def amoroso(key: Key[Array, ""]) -> Cases:
    """Yield Amoroso's moments of orders 0, 1 and 2 minus integrals of the printed density."""

    def integrand(z: float, order: int, a: float, theta: float, alpha: float, beta: float) -> float:
        density = beta / math.gamma(alpha) * z ** (alpha * beta - 1) * math.exp(-(z**beta))
        return (a + theta * z) ** order * density

    for parameters in ((0.0, 1.5, 1.5, 2.0), (0.7, -2.0, 1.2, 1.3), (-1.0, 0.5, 4.5, 2.0)):
        for order in (0, 1, 2):
            integral = scipy.integrate.quad(integrand, 0, 60, args=(order, *parameters))[0]
            yield float(pruning.gaussian.amoroso_moment(*parameters, order)) - integral


PROPOSITION_1 = claim(
    "Proposition 1, Equations 11 to 13",
    r"The moment of order $j$ of the Amoroso distribution with the parameters $\theta$, $\alpha$ "
    r"and $\beta$ is $\theta^j\,\Gamma(\alpha + j/\beta)/\Gamma(\alpha)$",
    printed="Proposition 1 states Equations 11 to 13, moments of a variable x of the Amoroso "
    "distribution, “for x, a, θ, α, β ∈ R, α > 0 and range x ≥ a if θ > 0, x ≤ a if θ < 0”",
    corrected=r"The formula for the moments holds if $\alpha + j/\beta > 0$",
    fault="false in a case",
    why=r"For $\theta = \alpha = 1.5$ and $\beta = -1$, the second moment is infinite, but "
    r"Equation 13 gives the variance $-18$. The paper uses Proposition 1 only at $\beta = 2$.",
)
PROPOSITION_1.equal("moments of order 0 to 2 by quadrature")(amoroso)


def _equation_13() -> float:
    """The variance that Equation 13 prints, at θ = α = 1.5 and β = −1."""
    theta, alpha, beta = 1.5, 1.5, -1.0
    first, second = (math.gamma(alpha + j / beta) / math.gamma(alpha) for j in (1, 2))
    return theta**2 * (second - first**2)


@PROPOSITION_1.at_most("the variance is not negative, θ = α = 1.5, β = −1", form="rejected")
def _() -> Values:
    return -_equation_13()


@PROPOSITION_1.equal("Equation 13 gives −18 at θ = α = 1.5, β = −1", -18.0, form="corrected")
def _() -> Values:
    return _equation_13()


@PROPOSITION_1.equal("the second moment is infinite at θ = α = 1.5, β = −1", form="corrected")
def _() -> Values:
    return float(np.isfinite(float(pruning.gaussian.amoroso_moment(0, 1.5, 1.5, -1.0, 2))))


def _moment(density: Callable[[float], Any], order: int | float) -> float:
    """The integral ∫ x^order density(x) dx over x > 0, by quadrature."""
    return scipy.integrate.quad(lambda x: float(x**order * density(x)), 0, 40)[0]


PROPOSITION_2 = claim(
    "Proposition 2, Equations 14 and 15",
    r"If $x$ has the distribution $N(0, \sigma^2)$, $|x|$ has the mean $\sigma\sqrt{2/\pi}$ and "
    r"the variance $\sigma^2(1 - 2/\pi)$",
)


@PROPOSITION_2.equal("moments by quadrature, and those of Amoroso's distribution")
def _() -> Cases:
    density = partial(scipy.stats.halfnorm.pdf, scale=1.7)
    for order in (1, 2, 3, 5.5):
        moment = float(pruning.gaussian.half_normal_moment(1.7, order))
        yield moment / _moment(density, order) - 1
        yield moment / float(pruning.gaussian.amoroso_moment(0, 2**0.5 * 1.7, 0.5, 2.0, order)) - 1


PROPOSITION_2.mean("mean", (2 / math.pi) ** 0.5, THREE_FILTERS, "first_size")
PROPOSITION_2.variance("variance", 1 - 2 / math.pi, THREE_FILTERS, "first_size")
PROPOSITION_2.variance("Var l1 = d(1 − 2/π)", DIMS * (1 - 2 / math.pi), THREE_FILTERS, "l1")


PROPOSITION_3 = claim(
    "Proposition 3, Equations 16 and 17",
    r"For $v$ of $N(0, \sigma^2I)$, $E\|v\|^j = 2^{j/2}\,\sigma^j\,\Gamma((k + "
    r"j)/2)/\Gamma(k/2)$",
    why=r"$\operatorname{Var}\|v\| = 2\sigma^2h(k)$ with $h(k) = k/2 - (\Gamma((k + "
    r"1)/2)/\Gamma(k/2))^2 = 1/4 - 1/(16k) - \dots$. In every dimension, the variance "
    r"$\operatorname{Var}\|v\|$ is below $\sigma^2/2$, which is the limit of the variance (Lemma "
    "2).",
)


@PROPOSITION_3.equal("moments and variance of SciPy's χ distribution", tolerance=1e-8)
def _() -> Cases:
    for k in (1, 2, 9, 64):
        distribution = scipy.stats.chi(k, scale=1.3)
        yield float(pruning.gaussian.chi_moment(1.3, float(k), 1)) / distribution.mean() - 1
        yield float(pruning.gaussian.chi_variance(1.3, float(k))) / distribution.var() - 1
        for order in (2.5, -0.5):
            moment = float(pruning.gaussian.chi_moment(1.3, float(k), order))
            density = partial(scipy.stats.chi.pdf, df=k, scale=1.3)
            yield moment / _moment(density, order) - 1
            if order > 0:
                amoroso = pruning.gaussian.amoroso_moment(0, 2**0.5 * 1.3, k / 2, 2.0, order)
                yield moment / float(amoroso) - 1


@PROPOSITION_3.at_most("h(k) grows and is below 1/4", tolerance=1e-12)
def _() -> Values:
    h = np.asarray(pruning.gaussian.chi_variance(1.0, jnp.arange(1, 2001).astype(float))) / 2
    return [h - 0.25, -np.diff(h)]
