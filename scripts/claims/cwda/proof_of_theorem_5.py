"""Claims in Appendices F to H of the pruning paper, which prove Theorem 5."""

import math
from functools import partial

import scipy.stats

from claims.cwda._draws import DIMS, THREE_FILTERS
from geometry.claims import Cases, Claim
from geometry.filters import gaussian_filter_geometry

claim = partial(Claim, "CWDA")


EQUATIONS_82_TO_84 = claim(
    "Equations 82 to 84",
    r"$P(|r - \sqrt2\,c\,R| \le c\sqrt{M/2}) \ge 1 - 1/M$",
    why=r"The statement is Chebyshev's inequality with $\operatorname{Var} r = 2c^2h(k) < c^2/2$. "
    r"Equation 82 holds for every number $k$ of dimensions. As $k$ grows, the width $c\sqrt{M/2}$ "
    r"of the interval in Equation 84 does not shrink. Only the ratio of the width to $c\sqrt k$ "
    "shrinks.",
)


@EQUATIONS_82_TO_84.at_most("exactly, k = 1 to 100: the tails are at most 0.3 of 1/M")
def _() -> Cases:
    for k in (1, 2, 9, 100):
        chi = scipy.stats.chi(k)
        for m in (2.5, 5, 20):
            width = math.sqrt(m / 2)
            tails = chi.sf(chi.mean() + width) + chi.cdf(chi.mean() - width)
            yield float(tails) - 1 / m


@EQUATIONS_82_TO_84.equal("Chebyshev's inequality is attained by three values")
def _() -> Cases:
    for m in (2.5, 5.0, 20.0):
        values, chances = (-1.0, 0.0, 1.0), (1 / (2 * m), 1 - 1 / m, 1 / (2 * m))
        variance = sum(p * x**2 for x, p in zip(values, chances, strict=True))
        width = math.sqrt(m * variance) * (1 - 1e-12)
        yield sum(p for x, p in zip(values, chances, strict=True) if abs(x) >= width) - 1 / m


EQUATIONS_85_TO_88 = claim(
    "Equations 85 to 88",
    r"The products $v_{ip}v_{jp}$ of two weights have mean 0 and variance 1, so $\langle v_i, "
    r"v_j\rangle/\sqrt k$ is $N(0, 1)$",
    printed=r"Appendix F, for $v \thicksim N(0, c^2 \cdot I_k)$: “Note that, $v_i$ and $v_j$ are "
    r"independent, hence” Equation 86, $\operatorname{Var}(v_{ip}v_{jp}) = \dots = 1$; “since "
    "central limit theorem, we have” Equation 87",
    corrected="The products $v_{ip}v_{jp}$ of two weights have the variance $c^4$. The cosine of "
    "two filters has exactly the variance $1/k$",
    fault="false in a case",
    why="The product of two independent weights has the variance $c^4$, which is 1 only for $c = "
    "1$. The result of Equation 88 is right, because a cosine does not depend on $c$.",
)
EQUATIONS_85_TO_88.variance(
    "Var⟨vᵢ, vⱼ⟩/k = 1 at c = 0.7", 1.0, THREE_FILTERS, "inner_product", form="rejected"
)
EQUATIONS_85_TO_88.variance(
    "Var⟨vᵢ, vⱼ⟩/k = c⁴", 0.49**2, THREE_FILTERS, "inner_product", form="corrected"
)
EQUATIONS_85_TO_88.variance(
    "Var cos = 1/k", lambda: gaussian_filter_geometry(DIMS).cosine_variance, THREE_FILTERS, "cosine"
)


APPENDICES_G_AND_H = claim(
    "Appendices G and H",
    "Appendices G and H have statistical tests and details of the experiments",
    reason="Appendices G and H have headings, but no content.",
)
