"""Computes the expected similarity of two rankings of Gaussian filters, by two criteria.

A layer has `num_filters` filters of `dims` dimensions, drawn independently from N(0, σ² I).
Parameters are numbers or floating-point arrays, as in `_moments`.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm.internal import matmul
from pruning._arguments import fraction, parameters
from pruning.criteria import CRITERIA
from pruning.gaussian._moments import Parameter, chi_defect


def l1_l2_correlation(dims: Parameter) -> Float[Array, "..."]:
    """The exact Pearson correlation of the l1 and l2 norm of a Gaussian filter.

    The direction of a filter is independent of its length. Therefore Cov(l1, l2)/(E l1 E l2) is the
    squared coefficient of variation (CV) of l2, and the correlation is CV(l2)/CV(l1). As dims
    grows, the correlation decreases from 1 at dims = 1 to the limit 1/√(π − 2) = 0.9359. Therefore
    the rankings by l1 and l2 differ even in high dimensions. If an element of an array of dims is
    below 1, the correlation is NaN.

    Example:
      >>> print(f"{l1_l2_correlation(9):.4f}")
      0.9481
    """
    (dims,) = parameters(1, dims=dims)
    return jnp.sqrt(1 / (1 + _l1_noise(dims)))


def expected_spearman(
    num_filters: Parameter, dims: Parameter, pair: tuple[str, str]
) -> Float[Array, "..."]:
    """The mean of Spearman's correlation between scores by two criteria, over Gaussian layers.

    The order of the criteria in `pair` does not matter. The scores by two criteria are approximated
    as N = `num_filters` draws of two normal variables of correlation ρ. For normal draws of
    correlation ρ, the mean of Spearman's correlation is exactly 6 (asin ρ + (N − 2) asin(ρ/2)) / (π
    (N + 1)). The table gives t = 1/ρ² − 1 for four pairs of criteria:

        l1, l2       t = 1/corr² − 1     exact corr (`l1_l2_correlation`); normal scores as dims → ∞
        l2, fermat   t = 2q/(N − 1)      q = E‖v‖²/(E‖v‖)²; to first order in 1/N
        l2, gm       t = 2/(N − 1)       as for distances to the centroid; to first order in 1/N
        fermat, gm   t = 1/(2 N dims)    to first order in 1/N and 1/dims

    For l1 with fermat, ρ is the correlation of l1 with l2 times the correlation of l2 with fermat.
    For l1 with gm, the second factor is the correlation of l2 with gm.

    The formula was compared with random layers. The relative error of the difference 1 − mean was
    at most 6% for at least 16 filters of 27 dims (8% for fermat with gm), and at most 12% for 8
    filters of 9 dims. As dims grows, only the mean for fermat with gm tends to 1. As the number of
    filters grows, the means of the three pairs without l1 tend to 1. If dims and the number of
    filters grow, the mean for l1 with l2 tends to 0.930. The gradient is finite except for l1 with
    l2 at dims = 1.

    If a criterion of `CRITERIA` is not in the table, ρ is unknown and the result is NaN. Elements
    below 2 of an array `num_filters`, and elements below 1 of an array `dims`, also give NaN.

    Raises:
      ValueError: `pair` is not two different names of `CRITERIA`, `num_filters` is below 2, or
        `dims` is below 1.

    Example:
      >>> print(f"{expected_spearman(64, 576, ('l1', 'l2')):.4f}")
      0.9230
    """
    noise = _noise(num_filters, dims, pair)
    (num_filters,) = parameters(2, num_filters=num_filters)
    return spearman_of_noise(noise, num_filters)


def expected_overlap(
    num_filters: Parameter, dims: Parameter, pair: tuple[str, str], *, ratio: int | float
) -> Float[Array, "..."]:
    """The expected `overlap` of two criteria, each of which selects a share `ratio` of the filters.

    In a large Gaussian layer, the overlap is Φ₂(z, z; ρ)/ratio. Here z is the `ratio` quantile of
    N(0, 1), Φ₂ is the bivariate normal distribution function, and ρ is the correlation of the
    scores, as in `expected_spearman`. If ρ is not known and the ratio is below 1, the overlap is
    NaN. At ratio ½, the overlap is ½ + asin(ρ)/π. Independent rankings have the expected overlap
    `ratio`.

    Raises:
      ValueError: `expected_spearman` would raise an error, or `ratio` lies outside (0, 1].

    Example:
      >>> print(f"{expected_overlap(256, 2304, ('l1', 'l2'), ratio=8 / 256):.2f}")
      0.68
    """
    return overlap_of_noise(_noise(num_filters, dims, pair), ratio=ratio)


def spearman_of_noise(
    noise: Parameter, num_filters: Parameter, sign: Parameter = 1.0
) -> Float[Array, "..."]:
    """The mean of Spearman's correlation for two jointly normal scores of correlation ρ.

    The argument `noise` is 1/ρ² − 1, and `sign` is the sign of ρ.
    """
    # With t = `noise`, asin |ρ| = π/2 − atan √t, which is accurate even if |ρ| is nearly 1.
    whole = jnp.pi / 2 - jnp.arctan(jnp.sqrt(noise))
    half = jnp.arcsin(jnp.sqrt(1 / (1 + noise)) / 2)
    return sign * 6 / (jnp.pi * (num_filters + 1)) * (whole + (num_filters - 2) * half)


def overlap_of_noise(
    noise: Parameter, *, ratio: int | float, sign: Parameter = 1.0
) -> Float[Array, "..."]:
    """The expected overlap of rankings by two jointly normal scores of correlation ρ.

    The argument `noise` is 1/ρ² − 1, and `sign` is the sign of ρ.
    """
    from scipy.special import ndtri  # this import is slow, so it is not at the top

    ratio = fraction(ratio)
    if ratio == 1:
        return jnp.ones_like(jnp.asarray(1.0 * noise))
    z = float(ndtri(ratio))
    # By Plackett's identity, the probability that both scores are below z is Φ(z)² + 1/2π ∫
    # exp(−z²/(1 + sin θ)) dθ, with θ from 0 to asin ρ.
    whole = sign * jnp.asarray(jnp.pi / 2 - jnp.arctan(jnp.sqrt(noise)))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    angles = jnp.multiply.outer(whole, jnp.asarray((nodes + 1) / 2, whole.dtype))
    heights = jnp.exp(-(z**2) / (1 + jnp.sin(angles)))
    integral = matmul(heights, jnp.asarray(weights, whole.dtype))
    return ratio + whole * integral / (4 * jnp.pi * ratio)


def _noise(num_filters: Parameter, dims: Parameter, pair: tuple[str, str]) -> Parameter:
    """The noise t = 1/ρ² − 1 of a pair of criteria in the table of `expected_spearman`.

    For a pair that is not in the table, the noise is NaN.
    """
    (num_filters,), (dims,) = parameters(2, num_filters=num_filters), parameters(1, dims=dims)
    if len(set(pair) & set(CRITERIA)) != 2:
        names = ", ".join(CRITERIA)
        raise ValueError(f"pair must be two different names of {names}; got {pair}")
    spread = 2 / (num_filters - 1)
    fermat = spread * dims / (dims - 2 * chi_defect(dims))
    l1 = _l1_noise(dims)
    noises = {
        frozenset(("l1", "l2")): jnp.where(jnp.isnan(num_filters), jnp.nan, l1),
        frozenset(("l2", "fermat")): fermat,
        frozenset(("l2", "gm")): jnp.where(jnp.isnan(dims), jnp.nan, spread),
        frozenset(("l1", "fermat")): l1 + fermat + l1 * fermat,
        frozenset(("l1", "gm")): l1 + spread + l1 * spread,
        frozenset(("fermat", "gm")): 1 / (2 * num_filters * dims),
    }
    return noises.get(frozenset(pair), math.nan * spread * dims)


def _l1_noise(dims: Parameter) -> Parameter:
    """1/corr² − 1, the relative variance of l1's noise, where corr = CV(l2)/CV(l1).

    The result is computed from CV(l1)² = (π/2 − 1)/dims and CV(l2)² = h/(dims/2 − h), where h is
    `chi_defect(dims)`. Rounding errors would make the zero at dims = 1 negative.
    """
    defect = chi_defect(dims)
    return jnp.maximum(((math.pi / 2 - 1) * (0.5 - defect / dims) - defect) / defect, 0.0)
