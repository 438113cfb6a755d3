"""Section 3.2 of the pruning paper, to Theorem 1: ratios of criteria, l1 and l2."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from geometry.claims._draws import exponent, generator, normal
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
from geometry.claims.cwda._draws import (
    LAYERS,
)
from jaxnorm._numerics import chi_mean
from pruning.gaussian import RatioVariances

claim = claims_of("CWDA")

RATIO_DIMS = 9  # few, where l1/l2 and l2/l1 have different variances


def l1_mean() -> float:
    """E‖v‖₁."""
    return RATIO_DIMS * (2 / math.pi) ** 0.5


def norm_ratios(key: Key[Array, ""]) -> Statistics:
    """l1/l2, l2/l1, and l1/l2 of different filters, all scaled to mean 1; l2/l1 as it is."""
    v = normal(key, 500, 2, RATIO_DIMS)
    l1 = jnp.abs(v[:, 0]).sum(1) / l1_mean()
    l2, other_l2 = jnp.linalg.norm(v, axis=2).T / chi_mean(RATIO_DIMS)
    return {
        "l1_over_l2": l1 / l2,
        "l2_over_l1": l2 / l1,
        "l1_over_other_l2": l1 / other_l2,
        "l2_over_l1_unscaled": chi_mean(RATIO_DIMS) / l1_mean() * l2 / l1,
    }


RATIOS = Draws(norm_ratios, 100_000, batch_size=10_000, draws_per_key=500)


def exact() -> RatioVariances:
    """Variances of both ratios of one filter in `norm_ratios`."""
    return pruning.l1_l2_ratio_variance(RATIO_DIMS)


def independent_ratio_variance(dims: int = RATIO_DIMS) -> float:
    """Var of l1(X)/l2(X′) for independent X and X′, both scaled to mean 1."""
    first, second = (
        float(pruning.chi_moment(1.0, float(dims), -j)) * chi_mean(dims) ** j for j in (1, 2)
    )
    return (1 + (math.pi / 2 - 1) / dims) * second - first**2


def independent_ratios_rate(key: Key[Array, ""]) -> Values:
    """Exponent with which 2d times that variance tends to π − 1."""
    dims = (64, 256, 1024)
    return exponent(dims, [2 * d * independent_ratio_variance(d) - (math.pi - 1) for d in dims])


def log_ratios(key: Key[Array, ""]) -> Cases:
    """√(1 − η²) minus Pearson's correlation of two logs, η² = Var(log x/y)/Var(log y)."""
    rng = generator(key)
    for share in np.geomspace(1e-3, 1, 40):
        y, noise = rng.standard_t(4, (2, 50))
        x = y + share * noise
        eta2 = np.var(x - y) / np.var(y)
        if eta2 <= 1:
            yield math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1])


def attained_log_ratios(key: Key[Array, ""]) -> Cases:
    """The same at x = c²y + cs·noise, c² + s² = 1, of noise as long as y and orthogonal to it."""
    logs = generator(key).normal(size=(50, 2))
    y, noise = np.linalg.qr(logs - logs.mean(0))[0].T
    for angle in np.linspace(0.05, 1.5, 20):
        x = math.cos(angle) ** 2 * y + math.cos(angle) * math.sin(angle) * noise
        eta2 = np.var(x - y) / np.var(y)
        yield math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1])


APPROXIMATELY_MONOTONIC = claim(
    "Section 3.2, approximately monotonic",
    r"Small variances of $\hat X/\hat Y$ and $\hat Y/\hat X$ make "
    r"$\operatorname{Sp}(X, Y) \approx 1$",
    Sampled.rejected(
        "Sp = 1 of norms of independent filters", 1.0, LAYERS, "spearman_of_unrelated"
    ),
    Sampled.corrected(
        "their Sp is at most 0.05: found 0",
        0.05,
        LAYERS,
        "spearman_of_unrelated",
        side="≤",
        against=1.0,
    ),
    Sampled.corrected(
        "their Var(X̂/Ŷ) is small, nearly (π − 1)/(2d)",
        independent_ratio_variance,
        RATIOS,
        "l1_over_other_l2",
        "variance",
    ),
    Computed.corrected("2d Var(X̂/Ŷ) → π − 1 of them", independent_ratios_rate, "limit", -1.0, 0.1),
    Computed.corrected(
        "Pearson(log X, log Y) ≥ √(1 − Var(log X/Y)/Var(log Y))", log_ratios, "inequality"
    ),
    Computed.corrected(
        "attained where log X − log Y is uncorrelated with log X", attained_log_ratios
    ),
    printed=r"Section 3.2: “if both $\operatorname{Var}(\hat X/\hat Y)$ and "
    r"$\operatorname{Var}(\hat Y/\hat X)$ are small enough, then we have the "
    r"$\mathrm{Sp}$ between $X$ and $Y$ is close to 1”",
    corrected=r"$\operatorname{Var}(\log X/Y) \ll \operatorname{Var}(\log Y)$",
    why="Norms $X$ and $Y$ of two independent sets of filters have ratios of variance $O(1/d)$ "
    "and unrelated ranks, since each norm itself varies by $O(1/d)$. What must be small is "
    "the variance of the ratio beside that of the criterion.",
)

THEOREM_1_DIMS = (2, 3, 9, 64, 256, 576, 2304)


def theorem_1_bound(key: Key[Array, ""]) -> Values:
    """n times the larger ratio variance, minus 1: printed as ≲ 1/n."""
    return [n * max(pruning.l1_l2_ratio_variance(n)) - 1 for n in THEOREM_1_DIMS]


def theorem_1_sharp(key: Key[Array, ""]) -> Values:
    """2n times the larger ratio variance, minus π − 3."""
    return [2 * n * max(pruning.l1_l2_ratio_variance(n)) - (math.pi - 3) for n in THEOREM_1_DIMS]


def theorem_1_rate(key: Key[Array, ""]) -> Values:
    """Exponents with which n Var tends to (π − 3)/2, of both ratios."""
    dims = np.array(THEOREM_1_DIMS[3:])
    variances = np.array([pruning.l1_l2_ratio_variance(int(n)) for n in dims])
    return [exponent(dims, dims * variance - (math.pi - 3) / 2) for variance in variances.T]


def theorem_1_limits(key: Key[Array, ""]) -> Values:
    """n³ times what the expansion of both variances leaves at n = 200 and 400."""
    expansion = pruning.gaussian.l1_l2_ratio_variance_limit
    return [
        n**3 * np.abs(np.subtract(pruning.l1_l2_ratio_variance(n), expansion(n)))
        for n in (200, 400)
    ]


THEOREM_1 = claim(
    "Theorem 1, Equations 3 and 25",
    r"$\operatorname{Var}(\ell_1/\ell_2)$ and $\operatorname{Var}(\ell_2/\ell_1)$ of a Gaussian "
    r"filter in $n$ dimensions, scaled to mean 1, $\lesssim 1/n$",
    Computed("n Var ≤ 1, n = 2..2304: 0.07 at most", theorem_1_bound, "inequality"),
    Sampled.overread(
        "Var(l1/l2) is (π − 1)/(2n), the last line of the proof, n = 9",
        (math.pi - 1) / (2 * RATIO_DIMS),
        RATIOS,
        "l1_over_l2",
        "variance",
    ),
    Sampled.corrected(
        "Var(l1/l2), exact",
        lambda: exact().direct,
        RATIOS,
        "l1_over_l2",
        "variance",
        against=lambda: exact().inverse,
    ),
    Sampled.corrected(
        "Var(l2/l1), exact",
        lambda: exact().inverse,
        RATIOS,
        "l2_over_l1",
        "variance",
        against=lambda: exact().direct,
    ),
    Computed.corrected("2n Var < π − 3", theorem_1_sharp, "inequality"),
    Computed.corrected("n Var → (π − 3)/2 like 1/n", theorem_1_rate, "limit", -1.0, 0.1),
    Computed.corrected(
        "to second order in 1/n, within 0.3/n³", theorem_1_limits, "inequality", predicted=0.3
    ),
    corrected=r"$(1 + \text{CV}_1^2)/(1 + \text{CV}_2^2) - 1 < (\pi - 3)/(2n)$, fifteen times "
    "smaller",
    remark=Remark(
        "loose",
        r"The variance is $0.07/n$. The $(\pi - 1)/(2n)$ of the proof is what independent "
        r"$\ell_1$ and $\ell_2$ have, and above $1/n$: as a bound it says nothing of ranks.",
    ),
    why="The direction of a Gaussian filter is independent of its length, so that "
    r"$E(\ell_1/\ell_2)^j = E\,\ell_1^j/E\,\ell_2^j$ and "
    r"$\operatorname{Var}(\ell_1/\ell_2) = (1 + \text{CV}_1^2)/(1 + \text{CV}_2^2) - 1$ with "
    r"$\text{CV}_1^2 = (\pi/2 - 1)/n$ and $\text{CV}_2^2 \approx 1/(2n)$. Equation 25 drops "
    "the covariance, which takes all but a fifteenth away.",
)

THEOREM_1_PROOF = claim(
    "Proof of Theorem 1, first display",
    r"$\operatorname{Var}(\hat\ell_2/\hat\ell_1) = "
    r"(E\,\ell_1/E\,\ell_2)^2\,\operatorname{Var}(\hat\ell_2/\hat\ell_1)$",
    Sampled.rejected(
        "(E l1/E l2)² Var(l̂2/l̂1), n = 9",
        lambda: (l1_mean() / chi_mean(RATIO_DIMS)) ** 2 * exact().inverse,
        RATIOS,
        "l2_over_l1",
        "variance",
    ),
    Sampled.corrected(
        "Var(l2/l1) = (E l2/E l1)² Var(l̂2/l̂1)",
        lambda: (chi_mean(RATIO_DIMS) / l1_mean()) ** 2 * exact().inverse,
        RATIOS,
        "l2_over_l1_unscaled",
        "variance",
    ),
    printed=r"Appendix B, before Equation 25: “$\operatorname{Var}(\hat\ell_2(X)/\hat\ell_1(X)) = "
    r"(E(\ell_1(X))/E(\ell_2(X)))^2\,\operatorname{Var}(\hat\ell_2(X)/\hat\ell_1(X))$”",
    corrected="without hats on the right",
    why=r"A misprint: both sides have the same variance, and the factor is nearly $2n/\pi$. The "
    "next line of the proof has the right one.",
)
