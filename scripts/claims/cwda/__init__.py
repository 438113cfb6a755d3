"""Claims of the pruning paper, about the convolution weight distribution assumption (CWDA).

A layer has N filters of d weights each, with standard deviation c. The paper also writes n for N
and k for d. Let R = Γ((d + 1)/2)/Γ(d/2). The norm of a filter has mean √2 c R and variance 2c²h,
where h = d/2 − R². The squared coefficient of variation of the norm is q − 1, where q = d/(2R²).
"""

from claims.cwda import (
    accuracies,
    assumption,
    criteria,
    geometry_of_filters,
    lemmas,
    moments,
    points,
    proof_of_theorem_1,
    proof_of_theorem_2,
    proof_of_theorem_3,
    proof_of_theorem_4,
    proof_of_theorem_5,
    rank_correlation,
    rankings,
    ratios,
    redundancy,
    spread_and_mean,
    sums,
)
from claims.sections import claims_in

CLAIMS = claims_in(
    criteria,
    rankings,
    assumption,
    spread_and_mean,
    ratios,
    rank_correlation,
    sums,
    proof_of_theorem_4,
    accuracies,
    redundancy,
    geometry_of_filters,
    moments,
    proof_of_theorem_1,
    proof_of_theorem_2,
    lemmas,
    proof_of_theorem_3,
    points,
    proof_of_theorem_5,
)
