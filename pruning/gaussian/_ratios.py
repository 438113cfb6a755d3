"""Computes the variances of ratios of norms in Theorems 1 and 3, exactly and for large dims.

The theorems are of Huang et al. (2020). Filters are drawn from N(0, c² I) in `dims` dimensions, and
each norm is divided by its mean. The ratios do not depend on the standard deviation c. Arguments
and results are Python numbers. The variances of some ratios need moments of negative order, which
are integrals. The integrals are computed on the host in float64.
"""

import math
from typing import NamedTuple

import numpy as np

from jaxnorm.internal import check_flags, check_on_host, check_whole
from pruning._arguments import at_least
from pruning.gaussian._moments import chi_defect


class RatioVariances(NamedTuple):
    """The variances of a ratio of two norms, and of the inverse of the ratio.

    Before the ratio is computed, each norm is divided by its mean.
    """

    direct: float
    inverse: float


def l1_l2_ratio_variance(dims: int) -> RatioVariances:
    """The exact variances of l1/l2 and l2/l1 of a Gaussian filter.

    The norms l1 and l2 are first divided by their means. Theorem 1 bounds the variances of l1/l2
    and l2/l1 by 1/dims. The direction of a filter is independent of its length, so E (l1/l2)^j = E
    l1^j / E l2^j. Therefore Var(l1/l2) = (1 + CV₁²)/(1 + CV₂²) − 1, where CV₁ and CV₂ are the
    coefficients of variation of l1 and l2. Var(l2/l1) needs moments of negative order of l1. These
    moments are integrals with an accuracy of about 12 digits. The variances of l1/l2 and l2/l1 are
    below their limit for large dims, (π − 3)/(2 dims). The limit is fifteen times smaller than the
    bound (π − 1)/(2 dims) in the proof of Theorem 1.

    Example:
      >>> [f"{9 * variance:.5f}" for variance in l1_l2_ratio_variance(9)]
      ['0.05461', '0.06235']
    """
    _check("l1_l2_ratio_variance", dims=dims)
    if dims == 1:
        return RatioVariances(0.0, 0.0)
    defect = float(chi_defect(dims))
    direct = ((math.pi / 2 - 1) * (1 - 2 * defect / dims) - 2 * defect) / dims
    if dims == 2:
        # E l1⁻² diverges, so moments of l2/l1 are computed as means over the direction of the
        # filter.
        inverse = (4 / math.pi) ** 2 * (2 / math.pi - 8 * math.asinh(1) ** 2 / math.pi**2)
        return RatioVariances(direct, inverse)
    # The four numbers below are E X⁻ʲ − 1 for j = 1 ("first") and j = 2 ("second"), where X is a
    # norm divided by its mean. The moments of l2 come from gamma functions, and the moments of l1
    # from quadrature.
    l2_first, l2_second = (1 - 2 * defect) / (dims - 1), (2 - 2 * defect) / (dims - 2)
    l1_first, l1_second = _inverse_excess(dims, 1)
    first = (l1_first - l2_first) / (1 + l2_first)
    second = (l1_second - l2_second) / (1 + l2_second)
    return RatioVariances(direct, second - 2 * first - first**2)


def l1_l2_ratio_variance_limit(dims: int) -> RatioVariances:
    """The variances of l1/l2 and l2/l1 to second order in 1/dims, for Theorem 1 at large dims.

    The first-order term of Var(l1/l2) and of Var(l2/l1) is (π − 3)/(2 dims). The second-order term
    is (5/8 − π/4)/dims² for Var(l1/l2) and (2π² − 33π/4 + 49/8)/dims² for Var(l2/l1). The terms
    follow from the first four moments of |x|.

    Example:
      >>> [f"{2304 * variance:.5f}" for variance in l1_l2_ratio_variance_limit(2304)]
      ['0.07073', '0.07077']
    """
    _check("l1_l2_ratio_variance_limit", dims=dims)
    first = (math.pi - 3) / (2 * dims)
    direct, inverse = 5 / 8 - math.pi / 4, 2 * math.pi**2 - 33 / 4 * math.pi + 49 / 8
    return RatioVariances(first + direct / dims**2, first + inverse / dims**2)


def norm_sum_ratio_variance(n: int, dims: int) -> RatioVariances:
    """The exact variances Var(F₁/F₂) and Var(F₂/F₁) of Theorem 3.

    The sums F₁ = Σ‖aᵢ‖ and F₂ = Σ‖aᵢ‖² are over n vectors aᵢ. The ratio Σ‖aᵢ‖/√Σ‖aᵢ‖² is
    independent of Σ‖aᵢ‖². With m = n · dims and the squared coefficient of variation q − 1 of ‖aᵢ‖,
    Var(F₁/F₂) = (m + dims (q − 1)(m − 1)²)/((m − 2)(m − 1)²). The formula dims (n − 1 + q)/(m − 2)
    − (m/(m − 1))² is equal, but subtracts two numbers near 1 and loses digits. Var(F₂/F₁) needs
    moments of 1/F₁. Neither variance depends on the standard deviation c.

    Raises:
      ValueError: n or dims is below 1, or n · dims is at most 2, where Var(F₁/F₂) is infinite.

    Example:
      >>> [f"{2 * 10 * 9 * variance:.4f}" for variance in norm_sum_ratio_variance(10, 9)]
      ['1.0727', '1.0156']
    """
    _check("norm_sum_ratio_variance", n=n, dims=dims)
    m, defect = n * dims, float(chi_defect(dims))
    if m <= 2:
        raise ValueError(f"n · dims must be above 2 for a finite variance; got {m}")
    spread = 2 * defect / (1 - 2 * defect / dims)
    direct = (m + spread * (m - 1) ** 2) / ((m - 2) * (m - 1) ** 2)
    if n == 1:
        return RatioVariances(direct, 2 * defect * (dims - 2 * defect) / dims**2)
    first, second = _inverse_excess(n, dims)
    inverse = m * (m - 2) * second - (m - 1) ** 2 * (2 * first + first**2) - 1
    return RatioVariances(direct, inverse / m**2)


def norm_sum_ratio_variance_limit(n: int, dims: int, *, shared: bool = False) -> RatioVariances:
    """The leading term of both variances of Theorem 3, 1/(2 n dims).

    Args:
      shared: Whether the vectors aᵢ = P − vᵢ share the filter P, as in Equation 8. Theorem 3 does
        not cover vectors that share P. For these vectors, the leading term is (1 + 3/n)/(8 dims),
        which does not tend to zero as n grows.
    """
    _check("norm_sum_ratio_variance_limit", n=n, dims=dims)
    check_flags(shared=shared)
    leading = (1 + 3 / n) / (8 * dims) if shared else 1 / (2 * n * dims)
    return RatioVariances(leading, leading)


def _check(function: str, **sizes: int) -> None:
    check_on_host(function, sizes, instead=f"give {' and '.join(sizes)} as Python numbers")
    check_whole(**sizes)
    at_least(1, **sizes)


def _inverse_excess(n: int, dims: int) -> tuple[float, float]:
    """The numbers E X⁻¹ − 1 and E X⁻² − 1, for X = Σ‖aᵢ‖ / E Σ‖aᵢ‖ of n Gaussian vectors.

    For j = 1 and 2, E X⁻ʲ = ∫ t^(j−1) E e^(−tX) dt with E e^(−tX) = (E e^(−t‖a‖/nE‖a‖))ⁿ. To get E
    X⁻ʲ − 1, e^(−t) is subtracted from E e^(−tX), because ∫ t^(j−1) e^(−t) = 1. The integrals are
    computed by double-exponential quadrature.
    """
    # SciPy is imported here, because the import is slow.
    from scipy.special import expit, logsumexp

    u, width = np.linspace(-3.5, 3.5, 449, retstep=True)
    t = np.exp(np.pi / 2 * np.sinh(u))
    weights = width * np.pi / 2 * np.cosh(u) * t
    mean = math.sqrt(dims - 2 * float(chi_defect(dims)))
    low, high = max(0.0, mean - 12), mean + 12
    share = expit(np.pi * np.sinh(u))
    r = low + (high - low) * share
    # In many dimensions, the density at small r underflows float64, but its logarithm does not.
    log_density = (dims - 1) * np.log(r / mean) - (r - mean) * (r + mean) / 2
    log_density += np.log(np.cosh(u) * share * expit(-np.pi * np.sinh(u)))
    log_density -= logsumexp(log_density)
    away = np.outer(t / (n * mean), r - mean)
    # `near` and `far` are log E e^(−a), where a has mean 0. If |a| < 30, E e^(−a) − 1 is computed
    # as the mean of e^(−a) − 1 + a, whose terms are positive, so no digits are lost. For larger a,
    # the terms e^(−a) − 1 + a could overflow.
    small = np.abs(away).max(1) < 30
    a = np.where(small[:, None], away, 0.0)
    near = np.log1p((np.expm1(-a) + a) @ np.exp(log_density))
    far = np.asarray(logsumexp(log_density - away, axis=1))
    gain = n * np.where(small, near, far)
    excess = np.where(
        gain < 1,
        np.exp(-t) * np.expm1(np.minimum(gain, 1.0)),
        np.exp(np.minimum(gain - t, 0.0)) - np.exp(-t),
    )
    return float(weights @ excess), float(weights @ (t * excess))
