"""Measures of the rank of a batch, and of the deviation of its samples from orthogonality.

Samples are the rows of `x`, (n samples, features). Effective and stable rank are computed from x xᵀ
or xᵀ x, whichever is smaller. The gap functions take a Gram matrix, so they also apply to layers of
infinite width. Sums are in at least float32; results have the dtype of the input. If an argument is
not a matrix, or is not finite outside `jit`, the functions raise `ValueError`. On Explicit mesh
axes, `numerical_rank` gathers `x`, and `stable_rank` and `isometry_gap` gather a Gram matrix.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from geometry._angles import gram as gram_matrix, trace
from geometry._arguments import as_gram, as_samples
from jaxnorm.internal import replicate, safe_sqrt, unit_of


def numerical_rank(x: Float[Array, "n d"]) -> Int[Array, ""]:
    """The number of singular values above max(n, d) · ε times the largest singular value.

    The number ε is the rounding unit of the dtype. `numpy.linalg.matrix_rank` and Figure 2 of
    Nachum et al. use the same threshold. `numerical_rank` computes the singular values of `x`
    itself, because a Gram matrix would lose singular values below √ε. A batch of zeros has rank 0.
    Under `jit`, samples with a NaN also have rank 0.

    Example:
      >>> print(numerical_rank(jnp.ones((5, 3))))
      1
    """
    h = replicate(as_samples(x))
    values = jnp.linalg.svd(h / unit_of(jnp.abs(h).max()), compute_uv=False)
    return jnp.sum(values > max(x.shape) * float(jnp.finfo(x.dtype).eps) * values.max())


def effective_rank(x: Float[Array, "n d"]) -> Float[Array, ""]:
    """The effective rank tr(C)² / ‖C‖²_F of C = xᵀ x, in [1, rank].

    The effective rank is a lower bound on the rank, and follows Daneshmand et al. (2020). Small
    singular values contribute little to the effective rank. A batch of n orthogonal samples of one
    length has effective rank n, and a batch of zeros has effective rank 0.

    Example:
      >>> print(effective_rank(jnp.diag(jnp.array([2.0, 2.0, 0.02]))).round(3))
      2.0
    """
    g = _relative_gram(x)
    return _quotient(jnp.square(trace(g)), jnp.square(g).sum()).astype(jnp.result_type(x))


def stable_rank(x: Float[Array, "n d"]) -> Float[Array, ""]:
    """The stable rank ‖x‖²_F / σ₁², in [1, rank], where σ₁ is the largest singular value.

    The definition is by Rudelson and Vershynin (2007). The stable rank is at most `effective_rank`,
    because Σσ⁴ ≤ σ₁² Σσ². A batch of zeros has stable rank 0. The gradient is finite even if
    singular values coincide.

    Example:
      >>> print(stable_rank(jnp.diag(jnp.array([2.0, 1.0, 1.0]))))
      1.5
    """
    g = _relative_gram(x)
    return _quotient(trace(g), jnp.linalg.eigvalsh(replicate(g))[-1]).astype(jnp.result_type(x))


def isometry_gap(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """The isometry gap log(tr(G)/n) − log(det(G))/n of a Gram matrix G.

    The gap is defined by Joudaki et al. (2023). The gap is 0 for orthogonal samples of equal
    length. The gap is ∞ if the samples are linearly dependent up to rounding, and NaN for a Gram
    matrix of zeros.

    Example:
      >>> print(isometry_gap(3 * jnp.eye(4)))
      0.0
    """
    values = jnp.linalg.eigvalsh(replicate(as_gram(gram)))
    tolerance = len(gram) * float(jnp.finfo(values.dtype).eps) * values[-1]
    positive = values > tolerance
    logs = jnp.where(positive, jnp.log(jnp.where(positive, values, 1)), -jnp.inf)
    return (jnp.log(values.mean()) - logs.mean()).astype(jnp.result_type(gram))


def orthogonality_gap(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """The orthogonality gap ‖G/tr(G) − I/n‖_F of a Gram matrix G, in [0, √(1 − 1/n)].

    The gap is 0 for orthogonal samples of one length. Rescaling makes the orthogonality gap small
    in deep linear networks, Daneshmand et al. (2021). The gradient at gap 0 is zero. A Gram matrix
    of zeros gives NaN.

    Example:
      >>> print(orthogonality_gap(jnp.ones((4, 4))).round(3))
      0.866
    """
    g = as_gram(gram)
    g = g / unit_of(jnp.abs(g).max())  # the division keeps the sum of the diagonal finite
    squares = jnp.square(g / trace(g) - jnp.eye(len(g), dtype=g.dtype) / len(g)).sum()
    return safe_sqrt(squares).astype(jnp.result_type(gram))


def _relative_gram(x: Float[Array, "n d"]) -> Float[Array, "m m"]:
    """x xᵀ or xᵀ x, whichever is smaller, after x is divided by its largest absolute element."""
    h = as_samples(x)
    # Ranks do not depend on the scale of `x`.
    h = h / unit_of(jnp.max(jnp.abs(h), initial=0))
    return gram_matrix(h if h.shape[0] <= h.shape[1] else h.T)


def _quotient(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """The quotient a/b, or 0 if b is zero."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))
