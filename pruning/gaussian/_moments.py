"""Exact moments of the norms of Gaussian filters.

Equations and theorems are of Huang et al. (2020). Filters are drawn independently from N(0, σ² I)
in `dims` dimensions, where σ is `std`. Parameters are numbers or floating-point arrays that
broadcast against each other. If parameters are arrays, all functions can be differentiated, batched
and traced. No function computes a difference of log-gammas, so float32 is accurate even at dims =
10⁷.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import chi_defect, matmul
from pruning._arguments import parameters, positive_number, real

Parameter = int | float | Float[Array, "..."]
"""A number or a floating-point array; arrays are promoted to at least float32."""


def half_normal_moment(std: Parameter, order: Parameter) -> Float[Array, "..."]:
    """The moment E|x|^j of a Gaussian weight, where j is `order`.

    The moment is σ^j 2^(j/2) Γ((j + 1)/2) / √π, where σ is `std`, and ∞ if j ≤ −1. Equation 14 is
    the moment of order 1, σ √(2/π). Equation 15 is the variance σ² (1 − 2/π).

    Example:
      >>> print(f"{half_normal_moment(1.0, 1):.4f}")
      0.7979
    """
    return chi_moment(std, 1, order)


def chi_moment(std: Parameter, dims: Parameter, order: Parameter) -> Float[Array, "..."]:
    """The moment E‖v‖₂^j of a Gaussian filter, where j is `order`.

    By Equation 16, the moment is σ^j 2^(j/2) Γ((dims + j)/2) / Γ(dims/2). The order j is any real
    number. The moment is ∞ if the order is at most −dims, or if the moment overflows the dtype. For
    the variance, use `chi_variance`, because a difference of two moments loses one digit for every
    factor of ten in dims.

    Raises:
      ValueError: `std` or `dims` is a negative number. Negative elements of an array give NaN
        instead.

    Example:
      >>> print(f"{chi_moment(2.0, 3, 2):.1f}")
      12.0
    """
    (std, dims), (order,) = parameters(0, std=std, dims=dims), parameters(order=order)
    return _gamma_moment(2**0.5 * std, order, dims / 2, order / 2)


def chi_variance(std: Parameter, dims: Parameter) -> Float[Array, "..."]:
    """Variance of the norm ‖v‖₂ of a Gaussian filter, Equation 17.

    The variance of the norm grows with dims from σ² (1 − 2/π) to σ²/2.

    Example:
      >>> print(f"{chi_variance(1.0, 1e7):.4f}")
      0.5000
    """
    std, dims = parameters(0, std=std, dims=dims)
    return jnp.asarray(2 * std**2 * chi_defect(dims))


def amoroso_moment(
    a: Parameter, theta: Parameter, alpha: Parameter, beta: Parameter, order: int | float
) -> Float[Array, "..."]:
    """Moment E x^order of the Amoroso distribution, Proposition 1: x = a + θ z^(1/β), z ~ Gamma(α).

    The moments about a are E (x − a)^i = θ^i Γ(α + i/β) / Γ(α). For an integer order j ≥ 0, the
    binomial formula gives E x^j = Σᵢ (j over i) a^(j−i) E (x − a)^i. If α + j/β ≤ 0, the integral
    diverges and the moment is θ^j · ∞, although the paper's formula is finite.

    Args:
      order: A nonnegative integer, or any real number if `a` is the number 0 and θ > 0.

    Raises:
      ValueError: `beta` is the number 0, or the moment has no closed form, because `a` is not the
        number 0 and `order` is negative or not an integer.
    """
    real(order=order)
    a, theta, alpha, beta = parameters(a=a, theta=theta, alpha=alpha, beta=beta)
    if isinstance(beta, float) and beta == 0:
        raise ValueError("beta must not be 0; got 0")
    if order >= 0 and order % 1 == 0:
        order = int(order)
        size, sign = jnp.abs(theta), jnp.sign(theta)
        total = sum(
            math.comb(order, i)
            * a ** (order - i)
            * sign**i
            * _gamma_moment(size, i, alpha, i / beta)
            for i in range(order + 1)
        )
        return jnp.where(alpha + order / beta <= 0, sign**order * jnp.inf, total)
    if not (isinstance(a, float) and a == 0):
        raise ValueError(
            f"order must be a whole number, at least 0, or a must be the number 0; got {order}"
        )
    return _gamma_moment(theta, order, alpha, order / beta)


def expected_distance(length: Parameter, std: Parameter, dims: Parameter) -> Float[Array, "..."]:
    """Mean distance of a Gaussian filter to a point F of norm `length`, as in Theorem 2.

    The paper prints the mean distance as σ² √(π/2) L(−y), where y = ‖F‖²/2σ² and L is the Laguerre
    function of degree ½ and parameter dims/2 − 1. Because a distance has the unit of σ, the factor
    must be σ, not σ². If j is a Poisson variable of mean y, ‖F − v‖ is σ times a chi variable of
    dims + 2j degrees of freedom. Therefore L is a sum of positive terms. The mean distance grows
    with `length`. The minimum of the mean distance, at length 0, is `chi_moment(std, dims, 1)`. The
    result is NaN in three cases: `length` is 70σ or more, an element of the array `std` is not
    positive, or an element of the array `dims` is negative.

    Raises:
      ValueError: `std` is a number that is zero, negative or not finite, or `dims` is a negative
        number.

    Example:
      >>> print(f"{expected_distance(jnp.array(0.0), 1.7, 9):.4f}")
      4.9606
    """
    positive_number(std, "std")
    (dims,), (length, std) = parameters(0, dims=dims), parameters(length=length, std=std)
    y, dims = jnp.broadcast_arrays(jnp.square(length / std) / 2, jnp.asarray(dims * 1.0))
    mean = jnp.vectorize(_mean_noncentral_chi)(y, dims.astype(y.dtype))
    return jnp.where(jnp.asarray(std <= 0), jnp.nan, std * mean)


def _mean_noncentral_chi(y: Float[Array, ""], dims: Float[Array, ""]) -> Float[Array, ""]:
    """The mean of a chi variable of dims + 2j degrees of freedom, where j is Poisson of mean y.

    The result is NaN if y is 2450 or more.
    """
    at_zero = y == 0  # the comparison is false for NaN, so NaN remains NaN
    y = jnp.where(at_zero, 1, y)
    first = jnp.maximum(jnp.floor(jax.lax.stop_gradient(y)) - 512, 0)
    j = first + jnp.arange(1024, dtype=y.dtype)
    steps = jnp.where(j > first, jnp.log(y / jnp.maximum(j, 1)), 0)
    degrees = dims + 2 * j
    lengths = jnp.sqrt(degrees - 2 * chi_defect(degrees))
    mean = matmul(jax.nn.softmax(jnp.cumsum(steps)), lengths)
    mean = jnp.where(y < 2450, mean, jnp.nan)
    return jnp.where(at_zero, jnp.sqrt(dims - 2 * chi_defect(dims)), mean)


def _gamma_moment(
    unit: Parameter, order: Parameter, x: Parameter, step: Parameter
) -> Float[Array, "..."]:
    """The product unit^order Γ(x + step)/Γ(x) for x > 0; ∞ if x + step ≤ 0.

    The recurrence of the gamma function gives ten factors and Γ(x + 10 + step)/Γ(x + 10). For this
    quotient, Stirling's series of the two gamma functions are subtracted term by term. Each power
    is split into four equal factors, so that no factor overflows unless the result overflows.
    """
    converges = ~jnp.asarray(x + step <= 0)  # this is true for NaN, so NaN remains NaN
    # For steps above 100, the result is computed from the sum of the logarithms of the factors,
    # which loses some digits.
    large = jnp.asarray(step > 100)
    small = jnp.where(large | ~converges, 0.0, step)
    product = 1.0
    for i in range(10):
        product = product * ((x + i) / (x + i + small))
    power = (x + 10 + small) ** (small / 4) * jnp.exp(_exponent(x, small) / 4)
    power = jnp.power(1.0 * unit, jnp.where(large, 0.0, order) / 4) * power
    for _ in range(4):
        product = product * power
    step = jnp.where(large, step, 0.0)
    logs = order * jnp.log(1.0 * unit) + step * jnp.log(x + 10 + step) + _exponent(x, step)
    for i in range(10):
        logs = logs - jnp.log1p(step / (x + i))
    product = jnp.where(large, jnp.exp(jnp.where(large, logs, 0.0)), product)
    return jnp.where(converges, product, jnp.inf)


def _exponent(x: Parameter, step: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logarithm of Γ(x + 10 + step)/Γ(x + 10) minus step · log(x + 10 + step)."""
    x = x + 10
    return (x - 0.5) * jnp.log1p(step / x) - step + _stirling(x + step) - _stirling(x)


def _stirling(x: Parameter) -> Parameter:
    """The remainder log Γ(x) − (x − ½) log x + x − ½ log 2π for x > 10, to 10⁻¹⁵."""
    u, series = 1 / x / x, 0.0
    for coefficient in (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = series * u + coefficient
    return series / x
