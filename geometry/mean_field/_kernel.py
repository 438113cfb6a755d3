"""Gram matrices after a random ReLU layer, in expectation or at infinite width.

A layer has Gaussian weights of variance 2/width ("He"). This variance keeps the mean of squared
norms. Gram matrices are (n, n) for a batch of n samples.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._arguments import as_cosine, as_gram, whole_number
from jaxnorm import recenter
from jaxnorm.internal import floating, host_only, replicate, safe_sqrt

# Above the width `_LONG_SUM`, a series in 1/width is more accurate than the exact sum, because the
# exponents in the sum are small differences of large logarithms.
_LONG_SUM = 10_000


def arccosine_kernel(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The expected Gram matrix after Gaussian weights and ReLU, Equation 111 of Nachum et al.

    The elements are K(x, y) = ‖x‖ ‖y‖ (√(1 − ρ²) + (π − arccos ρ) ρ) / π, where ρ is the cosine of
    x and y. K is the arc-cosine kernel of degree one (Cho and Saul, 2009). The diagonal of the Gram
    matrix is unchanged. The kernel K(x, y) is at least x·y. K(x, y) and x·y are equal for vectors
    of the same direction, a case that the paper leaves out. For opposite vectors, the kernel is
    zero. A zero vector has a row of zeros. Gradients are finite everywhere.

    Example:
      >>> print(arccosine_kernel(jnp.eye(2)).round(4))
      [[1.     0.3183]
       [0.3183 1.    ]]
    """
    return relu_kernel(as_gram(gram)).astype(jnp.result_type(gram))


def mean_field_step(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix after recentering and ReLU at infinite width: `arccosine_kernel` of H G H.

    The map is Equation 8 of Nachum et al., scaled to keep the squared norms of the recentered
    batch. The Gram matrix of the recentered batch is H G H with H = I − 11ᵀ/n. A batch of two
    samples has a right angle after one step.

    Example:
      >>> print(mean_field_step(2 * jnp.eye(2)))
      [[1. 0.]
       [0. 1.]]
    """
    return relu_kernel(recenter_both(as_gram(gram))).astype(jnp.result_type(gram))


def recenter_gram(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix of the batch after `jaxnorm.recenter`: H G H with H = I − 11ᵀ/n.

    Example:
      >>> print(recenter_gram(2 * jnp.eye(2)))
      [[ 1. -1.]
       [-1.  1.]]
    """
    return recenter_both(as_gram(gram)).astype(jnp.result_type(gram))


@host_only()
def expected_norm_factor(width: int) -> float:
    """The mean growth E ‖ReLU(W x)‖ / ‖x‖ of a norm in a layer of `width` d with weights N(0, 2/d).

    The formula is √(2/d) 2⁻ᵈ Σⱼ C(d, j) √2 Γ((j+1)/2) / Γ(j/2) = 1 − 5/(8d) − 23/(128d²) + O(d⁻³).
    Without the factor √(2/d), the formula is the mean of a chi variable whose number j of degrees
    of freedom is Binomial(d, 1/2). Theorem 14 of Nachum et al. states a growth of 1, which is right
    only for the mean squared norm. `expected_norm_factor` runs on the host in double precision.

    Raises:
      ValueError: `width` is not an integer, or is below 1.

    Example:
      >>> round(expected_norm_factor(100), 5)
      0.99373
    """
    width = whole_number(width, "width")
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    if width > _LONG_SUM:
        return 1 - 5 / (8 * width) - 23 / (128 * width**2)
    terms = (
        math.lgamma(width + 1)
        - math.lgamma(j + 1)
        - math.lgamma(width - j + 1)  # these three terms are the log of the binomial coefficient
        + math.lgamma((j + 1) / 2)
        - math.lgamma(j / 2)
        - width * math.log(2)
        for j in range(1, width + 1)
    )
    return 2 / width**0.5 * math.fsum(map(math.exp, terms))


def cosine_step(cosine: int | float | Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The cosine of two samples after ReLU alone: κ(ρ) = (√(1 − ρ²) + (π − arccos ρ) ρ) / π.

    The formula holds for layers of infinite width. The argument ρ is a number or an array in [−1,
    1]. If ρ is outside [−1, 1] by more than 0.01, the result is NaN. The slope of κ is 0 at −1 and
    1 at 1. After many layers, angles between samples are about 3π/t, where t is the number of
    layers.

    Example:
      >>> print(cosine_step(jnp.array([-1.0, 0.0, 1.0])).round(4))
      [0.     0.3183 1.    ]
    """
    cosine = floating(cosine, "cosine")
    return _after_relu(as_cosine(cosine)).astype(cosine.dtype)


def _after_relu(rho: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The result of `cosine_step` for a checked array; elements above 1 do not change."""
    inside = jnp.abs(rho) < 1
    safe = jnp.where(inside, rho, 0)
    value = (jnp.sqrt(1 - jnp.square(safe)) + (math.pi - jnp.arccos(safe)) * safe) / math.pi
    return jnp.where(inside, value, jnp.where(rho <= 0, 0, rho))


def relu_kernel(g: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The result of `arccosine_kernel` for a checked Gram matrix; NaN elements remain NaN."""
    diagonal = jnp.eye(len(g), dtype=bool)
    squares = jnp.sum(g, 1, where=diagonal, keepdims=True)  # a masked sum works for any sharding
    squares = jnp.where(squares <= 0, 0, squares)
    norm = safe_sqrt(squares)
    divisor = jnp.where(norm == 0, 1, norm)
    rho = g / divisor / replicate(divisor).T
    kernel = norm * replicate(norm).T * _after_relu(jnp.where(diagonal, 1, rho))
    return jnp.where(diagonal, squares, kernel)


def recenter_both(g: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The result of `recenter_gram` for a Gram matrix that was already checked."""
    return recenter(recenter(g, axis=0), axis=1)
