"""Section 3.2 of the pruning paper up to Theorem 1, on ratios of the criteria l1 and l2."""

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import LAYERS
from claims.draws import exponent, generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from jaxnorm.internal import chi_mean
from pruning.gaussian import RatioVariances

claim = partial(Claim, "CWDA")

RATIO_DIMS = 9  # with few weights, l1/l2 and l2/l1 have different variances


def l1_mean() -> float:
    return RATIO_DIMS * (2 / math.pi) ** 0.5


def norm_ratios(key: Key[Array, ""]) -> Statistics:
    """The ratios l1/l2 and l2/l1 of one filter, and the ratio l1/l2 of two different filters.

    All norms are scaled to mean 1, except in the entry "l2_over_l1_unscaled".
    """
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
    """The exact variances of the ratios l1/l2 and l2/l1 that `norm_ratios` draws for one filter."""
    return pruning.l1_l2_ratio_variance(RATIO_DIMS)


def independent_ratio_variance(dims: int = RATIO_DIMS) -> float:
    """The variance of l1(X)/l2(X′), where X and X′ are independent; both norms have mean 1."""
    first, second = (
        float(pruning.gaussian.chi_moment(1.0, float(dims), -j)) * chi_mean(dims) ** j
        for j in (1, 2)
    )
    return (1 + (math.pi / 2 - 1) / dims) * second - first**2


APPROXIMATELY_MONOTONIC = claim(
    "Section 3.2, approximately monotonic",
    r"Let $\hat X$ and $\hat Y$ be the scores $X$ and $Y$, divided by their means. If the "
    r"variances of $\hat X/\hat Y$ and $\hat Y/\hat X$ are small, the rank correlation of $X$ and "
    "$Y$ is nearly 1",
    printed="Section 3.2: “if both Var(X̂/Ŷ) and Var(Ŷ/X̂) are small enough, then we have the Sp "
    r"between X and Y is close to 1”, used with a bound $O(1/\text{dim})$ on both "
    "variances",
    corrected=r"If $|\log(x_i/y_i) - m| \le \varepsilon$ for a number $m$ and the scores $x_i$ and "
    "$y_i$ of all filters, the two scores rank the filters $i$ and $j$ in the same order for "
    r"$|\log(y_i/y_j)| > 2\varepsilon$. If the logarithms of the scores of many filters are "
    r"jointly normal, Spearman's ρ is $(6/\pi)\arcsin(r/2)$ with $r \ge \sqrt{1 - "
    r"\operatorname{Var}(\log X/Y)/\operatorname{Var}(\log Y)}$",
    fault="false",
    why="The norms of two independent sets of filters contradict the statement: the ratio of two "
    "independent norms in $d$ dimensions has the variance $O(1/d)$, but the two rankings are "
    "unrelated. The variance of the ratio is small only because each norm has a relative variance "
    "of $O(1/d)$.",
)
APPROXIMATELY_MONOTONIC.mean(
    "Sp = 1 of norms of independent filters", 1.0, LAYERS, "spearman_of_unrelated", form="rejected"
)
APPROXIMATELY_MONOTONIC.mean(
    "Sp of norms of independent filters is at most 0.05 (found: 0)",
    0.05,
    LAYERS,
    "spearman_of_unrelated",
    side="≤",
    against=1.0,
    form="corrected",
)
APPROXIMATELY_MONOTONIC.variance(
    "their Var(X̂/Ŷ) is small, nearly (π − 1)/(2d)",
    independent_ratio_variance,
    RATIOS,
    "l1_over_other_l2",
    form="corrected",
)


@APPROXIMATELY_MONOTONIC.rate(
    "2d Var(X̂/Ŷ) → π − 1 for norms of independent filters", -1.0, tolerance=0.1, form="corrected"
)
def _() -> Values:
    dims = (64, 256, 1024)
    return exponent(dims, [2 * d * independent_ratio_variance(d) - (math.pi - 1) for d in dims])


@APPROXIMATELY_MONOTONIC.at_most(
    "Pearson(log X, log Y) ≥ √(1 − Var(log X/Y)/Var(log Y))", form="corrected"
)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for share in np.geomspace(1e-3, 1, 40):
        y, noise = rng.standard_t(4, (2, 50))
        x = y + share * noise
        eta2 = np.var(x - y) / np.var(y)
        if eta2 <= 1:
            yield math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1])


@APPROXIMATELY_MONOTONIC.equal(
    "attained where log X − log Y is uncorrelated with log X", form="corrected"
)
def _(key: Key[Array, ""]) -> Cases:
    logs = generator(key).normal(size=(50, 2))
    y, noise = np.linalg.qr(logs - logs.mean(0))[0].T
    for angle in np.linspace(0.05, 1.5, 20):
        x = math.cos(angle) ** 2 * y + math.cos(angle) * math.sin(angle) * noise
        eta2 = np.var(x - y) / np.var(y)
        yield math.sqrt(1 - eta2) - float(np.corrcoef(x, y)[0, 1])


@APPROXIMATELY_MONOTONIC.at_most("1 − τ ≤ 2 · share of pairs within 2ε", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    i, j = np.triu_indices(50, 1)
    for share in np.geomspace(1e-3, 3, 40):
        y = rng.standard_t(2, 50)
        x = y + share * rng.uniform(-1, 1, 50)
        largest = np.abs(x - y - (x - y).mean()).max()
        tau: Any = scipy.stats.kendalltau(x, y)
        yield 1 - tau.statistic - 2 * np.mean(np.abs(y[i] - y[j]) <= 2 * largest)


@APPROXIMATELY_MONOTONIC.at_most(
    "Sp ≥ 0.9 where Pearson of the logs is 0.99, one of 50 values an outlier", form="overread"
)
def _(key: Key[Array, ""]) -> Values:
    y, noise = 1e-3 * generator(key).normal(size=(2, 50))
    y[0] = 1.0
    x = y + noise
    rho: Any = scipy.stats.spearmanr(x, y)
    return [0.99 - np.corrcoef(x, y)[0, 1], 0.9 - rho.statistic]


NORMAL_LOGS = 50  # the number of samples of each of the two normal variables


def normal_logs(key: Key[Array, ""]) -> Statistics:
    """Spearman's ρ between samples of two normal variables with a correlation of 0.8."""
    y, noise = normal(key, 2, NORMAL_LOGS)
    return {"spearman": pruning.spearman(0.8 * y + 0.6 * noise, y).astype(jnp.float32)}


def spearman_of_normal_logs() -> float:
    """The exact mean of Spearman's ρ between the two normal samples of `normal_logs`.

    For many samples, the mean of Spearman's ρ is (6/π) arcsin(r/2), where r is the correlation.
    """
    n = NORMAL_LOGS
    return 6 / math.pi / (n + 1) * (math.asin(0.8) + (n - 2) * math.asin(0.4))


APPROXIMATELY_MONOTONIC.mean(
    "E Sp of 50 jointly normal logs of correlation 0.8",
    spearman_of_normal_logs,
    Draws(normal_logs, 20_000),
    "spearman",
    form="corrected",
)

THEOREM_1_DIMS = (2, 3, 9, 64, 256, 576, 2304)


THEOREM_1 = claim(
    "Theorem 1, Equations 3 and 25",
    "For a Gaussian filter in $n$ dimensions and norms that are scaled to mean 1, "
    r"$\operatorname{Var}(\ell_1/\ell_2)$ and $\operatorname{Var}(\ell_2/\ell_1)$ are $\lesssim "
    "1/n$",
    corrected=r"The variance of $\ell_1/\ell_2$ is $(1 + \text{CV}_1^2)/(1 + \text{CV}_2^2) - 1 < "
    r"(\pi - 3)/(2n)$, which is fifteen times smaller than in the proof",
    remark=Remark(
        "loose",
        r"If $\ell_1$ and $\ell_2$ of filters of $n$ weights are divided by their means, the "
        r"variance of $\ell_1/\ell_2$ is $0.07/n$. The proof of Theorem 1 bounds the variance of "
        r"$\ell_1/\ell_2$ by $(\pi - 1)/(2n)$, which is larger than the bound $1/n$ of Theorem "
        "1. A bound of a variance implies nothing about ranks.",
    ),
    why="The direction of a Gaussian filter is independent of its length, so "
    r"$E(\ell_1/\ell_2)^j = E\,\ell_1^j/E\,\ell_2^j$ and $\operatorname{Var}(\ell_1/\ell_2) = (1 "
    r"+ \text{CV}_1^2)/(1 + \text{CV}_2^2) - 1$ with $\text{CV}_1^2 = (\pi/2 - 1)/n$ and "
    r"$\text{CV}_2^2 \approx 1/(2n)$. Equation 25 drops the covariance of $\ell_1$ and $\ell_2$, "
    "which cancels all but a fifteenth of the variance.",
)


@THEOREM_1.at_most("n Var ≤ 1, n = 2..2304: 0.07 at most")
def _() -> Values:
    return [n * max(pruning.l1_l2_ratio_variance(n)) - 1 for n in THEOREM_1_DIMS]


THEOREM_1.variance(
    "Var(l1/l2) is (π − 1)/(2n), the last line of the proof, n = 9",
    (math.pi - 1) / (2 * RATIO_DIMS),
    RATIOS,
    "l1_over_l2",
    form="overread",
)
THEOREM_1.variance(
    "Var(l1/l2), exact",
    lambda: exact().direct,
    RATIOS,
    "l1_over_l2",
    against=lambda: exact().inverse,
    form="corrected",
)
THEOREM_1.variance(
    "Var(l2/l1), exact",
    lambda: exact().inverse,
    RATIOS,
    "l2_over_l1",
    against=lambda: exact().direct,
    form="corrected",
)


@THEOREM_1.at_most("2n Var < π − 3", form="corrected")
def _() -> Values:
    return [2 * n * max(pruning.l1_l2_ratio_variance(n)) - (math.pi - 3) for n in THEOREM_1_DIMS]


@THEOREM_1.rate("n Var → (π − 3)/2 like 1/n", -1.0, tolerance=0.1, form="corrected")
def _() -> Values:
    dims = np.array(THEOREM_1_DIMS[3:])
    variances = np.array([pruning.l1_l2_ratio_variance(int(n)) for n in dims])
    return [exponent(dims, dims * variance - (math.pi - 3) / 2) for variance in variances.T]


@THEOREM_1.at_most("to second order in 1/n, within 0.3/n³", 0.3, form="corrected")
def _() -> Values:
    expansion = pruning.gaussian.l1_l2_ratio_variance_limit
    return [
        n**3 * np.abs(np.subtract(pruning.l1_l2_ratio_variance(n), expansion(n)))
        for n in (200, 400)
    ]


THEOREM_1_PROOF = claim(
    "Proof of Theorem 1, first display",
    r"The printed equation relates the variance of $\hat\ell_2/\hat\ell_1$ to itself: "
    r"$\operatorname{Var}(\hat\ell_2/\hat\ell_1) = "
    r"(E\,\ell_1/E\,\ell_2)^2\,\operatorname{Var}(\hat\ell_2/\hat\ell_1)$",
    printed=r"Appendix B, before Equation 25: “$\operatorname{Var}(\hat\ell_2(X)/\hat\ell_1(X)) = "
    r"(E(\ell_1(X))/E(\ell_2(X)))^2\,\operatorname{Var}(\hat\ell_2(X)/\hat\ell_1(X))$”",
    corrected=r"On the right side of the equation, the variance must be of $\ell_2/\ell_1$ "
    "without hats",
    fault="misprint",
    why="The same variance is on both sides of the printed equation, so the factor "
    r"$(E\,\ell_1/E\,\ell_2)^2$ would have to be 1, but the factor is nearly $2n/\pi$.",
)
THEOREM_1_PROOF.variance(
    "(E l1/E l2)² Var(l̂2/l̂1), n = 9",
    lambda: (l1_mean() / chi_mean(RATIO_DIMS)) ** 2 * exact().inverse,
    RATIOS,
    "l2_over_l1",
    form="rejected",
)
THEOREM_1_PROOF.variance(
    "Var(l2/l1) = (E l2/E l1)² Var(l̂2/l̂1)",
    lambda: (chi_mean(RATIO_DIMS) / l1_mean()) ** 2 * exact().inverse,
    RATIOS,
    "l2_over_l1_unscaled",
    form="corrected",
)
