"""Section 3.2 of the pruning paper, on what Theorem 1 implies for the ranks by l1 and l2."""

import math
from functools import partial

from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import (
    DIMS,
    FIGURE_1_DIMS,
    FIGURE_1_FILTERS,
    FIGURE_1_SCALES,
    LAYERS_OF_FIGURE_1,
    THREE_FILTERS,
    figure_1_spearman,
    layer_spearman,
    norm_cv2,
)
from claims.draws import exponent
from geometry.claims import Claim, Remark, Values

claim = partial(Claim, "CWDA")


def limit_of_spearman(key: Key[Array, ""]) -> Values:
    """The expected Spearman's ρ between l1 and l2, in the limit of many filters and dimensions."""
    return float(pruning.expected_spearman(10**6, 1e6, ("l1", "l2")))


def spearman_with_scales() -> float:
    """The expected Spearman's ρ between l1 and l2, for Figure 1's filters with different scales."""
    spread, n = FIGURE_1_SCALES**2, FIGURE_1_FILTERS
    l1, l2 = (math.pi / 2 - 1) / FIGURE_1_DIMS, norm_cv2(FIGURE_1_DIMS)
    rho = (spread + l2) / math.sqrt((spread + l1) * (spread + l2))
    return 6 / (math.pi * (n + 1)) * (math.asin(rho) + (n - 2) * math.asin(rho / 2))


CONCLUSION_FROM_THEOREM_1 = claim(
    "Conclusion from Theorem 1",
    r"The norms $\ell_1$ and $\ell_2$ rank filters nearly alike",
    corrected=r"As the dimension grows, the rank correlation $\mathrm{Sp}$ falls to 0.9301",
    remark=Remark(
        "over-reading",
        r"As the number of weights of a filter grows, $\mathrm{Sp}$ of $\ell_1$ and $\ell_2$ "
        "decreases to 0.930 for many Gaussian filters. The values 0.98 and 0.99 of Figure 1 are "
        r"larger than $\mathrm{Sp}$ of Gaussian filters with equal scales.",
    ),
    why=r"The correlation $\operatorname{Corr}(\ell_1, \ell_2) = \text{CV}_2/\text{CV}_1$ is 1 in "
    r"one dimension and falls to $1/\sqrt{\pi - 2} = 0.936$ in many dimensions. The variance of "
    "the ratio of the norms decreases only like $1/n$, which is as fast as the relative variances "
    r"of the norms decrease. A normal pair of correlation $\rho$ has $\mathrm{Sp} = "
    r"(6/\pi)\arcsin(\rho/2)$.",
)
CONCLUSION_FROM_THEOREM_1.add(layer_spearman("E Sp, 64 filters of 144 dimensions", "l1", "l2"))
CONCLUSION_FROM_THEOREM_1.mean(
    "E Sp = 6(asin ρ + (N − 2) asin(ρ/2))/(π(N + 1)), 128 filters of 576",
    figure_1_spearman,
    LAYERS_OF_FIGURE_1,
    "spearman_l1_l2",
    within=1e-3,
)
CONCLUSION_FROM_THEOREM_1.equal("Sp → 1", 1.0, tolerance=0.01, form="overread")(limit_of_spearman)
CONCLUSION_FROM_THEOREM_1.mean(
    "E Sp = 0.98, 128 filters of 576, as Figure 1 has of VGG16",
    0.98,
    LAYERS_OF_FIGURE_1,
    "spearman_l1_l2",
    form="overread",
)
CONCLUSION_FROM_THEOREM_1.mean(
    "E Sp = 0.98 if the filters' scales spread by 4.9 %",
    spearman_with_scales,
    LAYERS_OF_FIGURE_1,
    "spearman_with_scales",
    within=1e-3,
    against=0.96,
    form="corrected",
)
CONCLUSION_FROM_THEOREM_1.equal(
    "Sp → (6/π) asin(1/(2√(π − 2)))",
    6 / math.pi * math.asin(1 / (2 * math.sqrt(math.pi - 2))),
    tolerance=1e-5,
    form="corrected",
)(limit_of_spearman)


@CONCLUSION_FROM_THEOREM_1.rate(
    "Corr(l1, l2) falls to 1/√(π − 2) like 1/n", -1.0, tolerance=0.1, form="corrected"
)
def _() -> Values:
    dims = (16, 64, 256, 1024)
    limit = 1 / math.sqrt(math.pi - 2)
    return exponent(dims, [float(pruning.l1_l2_correlation(float(n))) - limit for n in dims])


CONCLUSION_FROM_THEOREM_1.mean(
    "Cov(l1, l2)/(E l1 E l2) = CV₂²",
    lambda: norm_cv2(DIMS),
    THREE_FILTERS,
    "l1_l2_covariance",
    form="corrected",
)


@CONCLUSION_FROM_THEOREM_1.equal("Corr(l1, l2) = CV₂/CV₁", tolerance=1e-12, form="corrected")
def _() -> Values:
    return [
        float(pruning.l1_l2_correlation(float(n))) - math.sqrt(n * norm_cv2(n) / (math.pi / 2 - 1))
        for n in (1, 2, 9, 576)
    ]
