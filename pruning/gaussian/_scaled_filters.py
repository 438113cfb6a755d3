"""Similarity of the rankings by l1 and l2 for filters whose weights are not Gaussian.

In the model, filters have different scales, and weights have heavier or lighter tails than a
Gaussian. A weight is the product of a log-normal scale of its filter and an independent generalized
Gaussian variable. The density of this variable is proportional to exp(−|x|^shape). Shape 1 gives
Laplace's density, and shape 2 the Gaussian density. In this model, the logarithms of l1 and l2 are
nearly jointly normal. Therefore all expected rank correlations depend only on the correlation of
log l1 and log l2.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import auto_sharded, check_flags, chi_defect, matmul, norm, safe_sqrt
from pruning._arguments import matrix, parameters, positive_number
from pruning.gaussian._expected_similarity import overlap_of_noise, spearman_of_noise
from pruning.gaussian._moments import Parameter, amoroso_moment
from pruning.weight_tests import fit_generalized_gaussian


class FilterModel(NamedTuple):
    """Three numbers that describe the distribution of a layer's filters.

    Attributes:
      shape: The shape of the generalized Gaussian distribution of the weights, after each filter is
        divided by its scale.
      spread: The standard deviation of the logarithm of the filters' scales.
      effective_dims: The directions of the filters differ as much as the directions of filters with
        this number of independent weights.
    """

    shape: Float[Array, ""]
    spread: Float[Array, ""]
    effective_dims: Float[Array, ""]


@auto_sharded
def fit_filter_model(
    filters: Float[Array, "filters dims"], *, correlated: bool = True
) -> FilterModel:
    """Fit the three numbers of a `FilterModel` to the filters of a layer.

    The shape of the weights' distribution is the maximum-likelihood estimate for all weights, each
    divided by the root mean square of its filter. The squared spread is the variance of log l2
    minus the variance that filters of equal scale would have, but at least 0. The effective
    dimension is the inverse of the mean squared cosine of two filters. To first order, the
    effective dimension is (tr S)²/tr S² for filters of covariance S. The effective dimension lies
    between 1 and the number of weights of a filter. A filter of zeros has no scale, so all fitted
    numbers are NaN. If the spread is 0, its gradient is 0.

    Args:
      correlated: Whether the weights of a filter may be correlated. If false, the effective
        dimension is the number of weights of a filter, and only two numbers are fitted.

    Raises:
      ValueError: `filters` is not a matrix of at least 2 filters.

    Example:
      >>> import jax
      >>> x = jax.random.laplace(jax.random.key(0), (256, 144), "float32")
      >>> x = x * jnp.exp(jnp.linspace(-0.5, 0.5, 256, dtype="float32"))[:, None]
      >>> fit = jax.jit(fit_filter_model)(x)
      >>> print(f"{fit.shape:.1f} {fit.spread:.1f} {fit.effective_dims:.0f}")
      1.0 0.3 144
    """
    check_flags(correlated=correlated)
    v = matrix(filters)
    n, dims = v.shape
    if n < 2:
        raise ValueError(
            f"the number of filters must be at least 2, because one filter has no spread; got {n}"
        )
    sizes = norm(v)
    units = v / jnp.where(sizes > 0, sizes, jnp.nan)
    shape = fit_generalized_gaussian(units * dims**0.5).shape
    squares = jnp.square(matmul(units, units.T))
    others = jnp.sum(squares, where=~jnp.eye(n, dtype=bool)) / (n * (n - 1))
    effective = 1 / jnp.clip(others, 1 / dims, 1) if correlated else jnp.full_like(shape, dims)
    logs = jnp.log(sizes)
    noise = _noises(shape, dims, effective)[1]
    spread = safe_sqrt(jnp.maximum(jnp.var(logs, ddof=1) - noise, 0))
    return FilterModel(shape, spread, effective)


def scaled_l1_l2_correlation(
    dims: Parameter,
    *,
    shape: Parameter = 2.0,
    spread: Parameter = 0.0,
    effective_dims: Parameter | None = None,
) -> Float[Array, "..."]:
    """The correlation of log l1 and log l2 of generalized Gaussian filters with log-normal scales.

    The correlation is (τ² + c)/√((τ² + a)(τ² + b)), where τ is the spread. For filters of equal
    scale, a and b are the squared coefficients of variation of l1 and l2, to first order in 1/dims.
    The number c is the relative covariance of l1 and l2 to the same order. With mₖ = E|x|ᵏ = Γ((k +
    1)/shape)/Γ(1/shape), the numbers a, b and c are:

        a = (m₂/m₁² − 1)/dims,   b = (m₄/m₂² − 1)/(4 dims),   c = (m₃/(m₁ m₂) − 1)/(2 dims),

    The code replaces b by the exact squared coefficient of variation of a chi variable with 1/(2b)
    degrees of freedom, and multiplies c by the quotient q(dims) of this value and b. Therefore, at
    shape 2 and spread 0, the result equals the exact `l1_l2_correlation`. The error of the
    correlation grows with the kurtosis of the weights and decreases with dims. At spread 0 and
    shape 0.7, the result is 0.02 too small for 144 dims, and 0.05 too small for 27 dims.

    If weights are correlated, `effective_dims` replaces dims in b, c and q. The share s = c²/(a b)
    of a comes from the part of |x| that is linear in x². This share is multiplied by 1 +
    (q(effective_dims)/effective_dims − q(dims)/dims)·dims. The remaining part of |x| is assumed to
    be independent between weights, because its correlations are of higher order in the correlations
    of Gaussian weights (Mehler). For Gaussian weights with 4 to 100 effective dims, the result
    differed from simulated correlations by at most 0.004. A result above 1, which the approximation
    gives only near dims = 1, is replaced by 1. The gradient of the correlation is finite for
    spreads above 0 and dims above 1.

    Raises:
      ValueError: `dims` or `effective_dims` is a number below 1, `spread` is a negative number, or
        `shape` is a number that is not positive. Elements of an array that are out of range give
        NaN instead.

    Example:
      >>> for spread in (0.0, 0.1, 1.0):
      ...     print(f"{scaled_l1_l2_correlation(576, shape=1.0, spread=spread):.4f}")
      0.8949
      0.9821
      0.9998
    """
    effective = dims if effective_dims is None else effective_dims
    dims, effective = parameters(1, dims=dims, effective_dims=effective)
    (shape,), (spread,) = parameters(0, shape=shape), parameters(0, spread=spread)
    positive_number(shape, "shape")
    first, second, both = _noises(shape, dims, effective)
    square = spread**2
    found = (square + both) / jnp.sqrt((square + first) * (square + second))
    return jnp.minimum(found, 1)


def normal_spearman(correlation: Parameter, num_filters: Parameter) -> Float[Array, "..."]:
    """The mean of Spearman's rank correlation of draws of two normal variables.

    For N draws of correlation ρ, the mean is 6 (asin ρ + (N − 2) asin(ρ/2))/(π (N + 1)). As N
    grows, the mean tends to 6/π asin(ρ/2). If a correlation ρ is outside [−1, 1], or an element of
    an array of filter counts is below 2, the result is NaN.

    Example:
      >>> print(f"{normal_spearman(0.95, 64):.4f} {normal_spearman(0.95, 1e9):.4f}")
      0.9385 0.9453
    """
    (correlation,), (count,) = (
        parameters(correlation=correlation),
        parameters(2, num_filters=num_filters),
    )
    return spearman_of_noise(_noise(correlation), count, jnp.sign(correlation))


def normal_kendall(correlation: Parameter) -> Float[Array, "..."]:
    """The mean 2/π asin ρ of Kendall's τ, for any number of draws of two normal variables.

    If a correlation ρ is outside [−1, 1], the result is NaN.

    Example:
      >>> print(f"{normal_kendall(0.95):.4f}")
      0.7978
    """
    (correlation,) = parameters(correlation=correlation)
    return 2 / jnp.pi * jnp.arcsin(jnp.asarray(correlation))


def normal_overlap(correlation: Parameter, *, ratio: int | float) -> Float[Array, "..."]:
    """The expected overlap of the lowest draws of two normal variables, for many draws.

    For each variable, a share `ratio` of all draws counts as lowest. For the formula, see
    `expected_overlap`. If a correlation is outside [−1, 1] and the ratio is below 1, the result is
    NaN.

    Raises:
      ValueError: `ratio` lies outside (0, 1].

    Example:
      >>> print(f"{normal_overlap(0.95, ratio=0.5):.4f}")
      0.8989
    """
    (correlation,) = parameters(correlation=correlation)
    return overlap_of_noise(_noise(correlation), ratio=ratio, sign=jnp.sign(correlation))


def _noise(correlation: Parameter) -> Parameter:
    """The noise t = 1/ρ² − 1 of a correlation ρ.

    The noise is infinite at ρ = 0, and NaN if |ρ| exceeds 1.
    """
    square = jnp.square(correlation)
    return jnp.where(square > 1, jnp.nan, (1 - square) / square)


def _noises(
    shape: Parameter, dims: Parameter, effective_dims: Parameter
) -> tuple[Array, Array, Array]:
    """The numbers a, b and c of `scaled_l1_l2_correlation`."""
    m1, m2, m3, m4 = (amoroso_moment(0.0, 1.0, 1 / shape, shape, k) for k in (1, 2, 3, 4))
    one, two, mixed = m2 / m1**2 - 1, m4 / m2**2 - 1, m3 / (m1 * m2) - 1
    second, factor = _of_norm(two, effective_dims)
    _, alone = _of_norm(two, dims)
    linear = mixed**2 / (one * two)
    first = one / dims * (1 + linear * (factor * dims / effective_dims - alone))
    return first, second, mixed / (2 * effective_dims) * factor


def _of_norm(two: Parameter, dims: Parameter) -> tuple[Array, Array]:
    """The squared coefficient of variation of l2, and its quotient by `two`/(4 dims).

    The squared coefficient of variation of l2² is `two`/dims, as for a chi-squared variable with
    2 dims/`two` degrees of freedom.
    """
    degrees = 2 * dims / two
    defect = chi_defect(degrees)
    exact = 2 * defect / (degrees - 2 * defect)
    return exact, 2 * degrees * exact
