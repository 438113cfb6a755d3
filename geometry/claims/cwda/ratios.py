"""Section 3.2 of the pruning paper, to Theorem 1: ratios of criteria, l1 and l2."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from geometry.claims._draws import exponent, generator, normal
from geometry.claims._types import Cases, Computed, Draws, Sampled, Statistics, Values, claims_of
from geometry.claims.cwda._draws import DIMS, LAYERS, THREE_FILTERS, layer_spearman, norm_cv2
from jaxnorm._numerics import chi_mean
from pruning.gaussian import RatioVariances

claim = claims_of("CWDA")

RATIO_DIMS = 64


def norm_ratios(key: Key[Array, ""]) -> Statistics:
    """l1/l2, l2/l1, and l1/l2 of different filters, all scaled to mean 1."""
    v = normal(key, 500, 2, RATIO_DIMS)
    l1 = jnp.abs(v[:, 0]).sum(1) / (RATIO_DIMS * (2 / math.pi) ** 0.5)
    l2, other_l2 = jnp.linalg.norm(v, axis=2).T / chi_mean(RATIO_DIMS)
    return {"l1_over_l2": l1 / l2, "l2_over_l1": l2 / l1, "l1_over_other_l2": l1 / other_l2}


RATIOS = Draws(norm_ratios, 100_000, batch_size=10_000, draws_per_key=500)


def exact() -> RatioVariances:
    """Variances of both ratios of one filter in `norm_ratios`."""
    return pruning.l1_l2_ratio_variance(RATIO_DIMS)


def independent_ratio_variance() -> float:
    """Var of l1(X)/l2(X′) for independent X and X′, both scaled to mean 1."""
    first, second = (
        float(pruning.chi_moment(1.0, float(RATIO_DIMS), -j)) * chi_mean(RATIO_DIMS) ** j
        for j in (1, 2)
    )
    return (1 + (math.pi / 2 - 1) / RATIO_DIMS) * second - first**2


def log_ratios(key: Key[Array, ""]) -> Cases:
    """√(1 − η²) minus Pearson's correlation of two logs, η² = Var(log x/y)/Var(log y)."""
    rng = generator(key)
    for share in np.geomspace(1e-3, 1, 40):
        y, noise = rng.standard_t(4, (2, 50))
        x = y + share * noise
        eta2 = np.var(x - y) / np.var(y)
        if eta2 <= 1:
            yield math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1])


APPROXIMATELY_MONOTONIC = claim(
    "Section 3.2, approximately monotonic",
    "Small variances of X/Y and Y/X make Sp(X, Y) ≈ 1",
    Sampled.rejected(
        "Sp = 1 of norms of independent filters", 1.0, LAYERS, "spearman_of_unrelated"
    ),
    Computed.corrected(
        "Pearson(log X, log Y) ≥ √(1 − Var(log X/Y)/Var(log Y))", log_ratios, "inequality"
    ),
    Sampled.corrected(
        "their Var(X/Y) is as small as 1/d",
        independent_ratio_variance,
        RATIOS,
        "l1_over_other_l2",
        "variance",
    ),
    printed="Var(X̂/Ŷ) ≪ 1",
    corrected="Var(log X/Y) ≪ Var(log Y)",
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


THEOREM_1 = claim(
    "Theorem 1, Equations 3 and 25",
    "Var(l1/l2) and Var(l2/l1) of a Gaussian filter in n dimensions, scaled to mean 1, ≲ 1/n",
    Computed("n Var ≤ 1, n = 2..2304", theorem_1_bound, "inequality"),
    Sampled.rejected(
        "Var(l1/l2) = (π − 1)/(2n), n = 64",
        (math.pi - 1) / (2 * RATIO_DIMS),
        RATIOS,
        "l1_over_l2",
        "variance",
    ),
    Sampled.corrected(
        "Var(l1/l2), exact", lambda: exact().direct, RATIOS, "l1_over_l2", "variance"
    ),
    Sampled.corrected(
        "Var(l2/l1), exact", lambda: exact().inverse, RATIOS, "l2_over_l1", "variance"
    ),
    Computed.corrected("2n Var < π − 3", theorem_1_sharp, "inequality"),
    Computed.corrected("n Var → (π − 3)/2 like 1/n", theorem_1_rate, "limit", -1.0, 0.1),
    printed="the proof has (π − 1)/(2n), the value of independent l1 and l2",
    corrected="(1 + CV₁²)/(1 + CV₂²) − 1 < (π − 3)/(2n), fifteen times smaller",
)


def limit_of_spearman(key: Key[Array, ""]) -> Values:
    """E Sp of l1 and l2, many filters in many dimensions."""
    return float(pruning.expected_spearman(10**6, 1e6, ("l1", "l2")))


def correlation_rate(key: Key[Array, ""]) -> Values:
    """Exponent with which Corr(l1, l2) tends to 1/√(π − 2)."""
    dims = (16, 64, 256, 1024)
    limit = 1 / math.sqrt(math.pi - 2)
    return exponent(dims, [float(pruning.l1_l2_correlation(float(n))) - limit for n in dims])


CONCLUSION_FROM_THEOREM_1 = claim(
    "Conclusion from Theorem 1",
    "l1 and l2 rank alike, the more so as the dimension grows",
    Computed.rejected("Sp → 1", limit_of_spearman, predicted=1.0, tolerance=0.01),
    Computed.corrected(
        "Sp → (6/π) asin(1/(2√(π − 2))) = 0.930078",
        limit_of_spearman,
        predicted=0.930078,
        tolerance=1e-5,
    ),
    Computed.corrected(
        "Corr(l1, l2) falls to 1/√(π − 2) like 1/n", correlation_rate, "limit", -1.0, 0.1
    ),
    Sampled.corrected(
        "Cov(l1, l2)/(E l1 E l2) = CV₂²", lambda: norm_cv2(DIMS), THREE_FILTERS, "l1_l2_covariance"
    ),
    layer_spearman("E Sp, 64 filters", "l1", "l2", form="corrected"),
    printed="Sp → 1",
    corrected="Sp → 0.9301, from above",
)
