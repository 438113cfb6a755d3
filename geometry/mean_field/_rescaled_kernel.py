"""Random layers of infinite width with rescaling, exact for any number n of samples.

The activities z of a neuron over the batch are Gaussian, and their covariance is the batch's Gram
matrix G. Rescaling divides z by √(zᵀ P z / n), where P is the identity, or the projection that
subtracts the mean over the batch. After the division, the activities are not Gaussian. The identity
1/q = ½ ∫ exp(−a q/2) da over a > 0 reduces the expectation to Gaussian expectations:

    E[f(z) / (zᵀ P z)] = ½ ∫ det(I + a P G)^(−1/2) E[f(z_a)] da,   Cov z_a = G (I + a P G)⁻¹,

an integral over one variable a. All nodes of the quadrature use the same eigendecomposition of C =
P G P. Gram matrices are (n, n), and are gathered if they are sharded over Explicit mesh axes. The
resulting Gram matrices have trace n, except for `rescale` without recentering. For a layer of
`width` neurons, the mean Gram matrix is width/2 times the result.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from geometry._arguments import as_cosine, as_gram
from geometry.mean_field._kernel import recenter_both, relu_kernel
from jaxnorm import recenter
from jaxnorm.internal import floating, matmul, replicate, safe_sqrt, unit_of

_STEP = 0.4  # The step between nodes in log a. The trapezoidal rule then has an error of 1e-9.
_BLOCK = 2**26  # The matrices of all nodes in a block take at most this number of bytes.


def rescale_rms_step(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix after `jaxnorm.rescale_rms` and ReLU, without recentering.

    `rescale_rms` divides each feature by its root mean square over the batch. If all angles between
    many samples are equal, the angles tend to 58.75° (`rms_angle`) in repeated steps. The scale of
    the batch does not change the result. A Gram matrix of zeros gives NaN. In float32, the error of
    cosines near 1 grows with the number of samples. For equal samples, cosines are up to 0.005 too
    small at 50 samples, and up to 0.02 at 200 samples.

    Example:
      >>> print(jax.jit(rescale_rms_step)(jnp.eye(2)).round(3))
      [[1.    0.318]
       [0.318 1.   ]]
    """
    return _about_zero(_unit_trace(gram)).astype(jnp.result_type(gram))


def standardize_step(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix after batch norm without parameters (`jaxnorm.standardize`), then ReLU.

    The function applies `rescale_rms_step` to the Gram matrix of the recentered batch. If all norms
    are equal and all angles are equal, the angles are `recentred_angle(n)` after one layer, and do
    not change in later layers. If all samples are equal, the result is NaN.

    Example:
      >>> print(jax.jit(standardize_step)(2 * jnp.eye(3))[0].round(3))
      [1.    0.109 0.109]
    """
    return _about_zero(recenter_both(_unit_trace(gram))).astype(jnp.result_type(gram))


def rescale_step(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix after `jaxnorm.rescale` and ReLU, without recentering.

    `rescale` divides each feature by its standard deviation over the batch. If `rescale_step` is
    repeated, all angles between samples tend to zero, as in layers with ReLU alone. The expectation
    is finite if the recentered batch has at least rank 3. At rank 1 or 2, the result is NaN or has
    no meaning.

    Raises:
      ValueError: There are fewer than 4 samples.

    Example:
      >>> print(jax.jit(rescale_step)(jnp.eye(100))[0, 1].round(2))
      0.32
    """
    g = _unit_trace(gram, min_samples=4)
    half = recenter(g, axis=1)
    centred = recenter(half, axis=0)

    def covariance(a: Array, at_a: _Resolvent) -> Array:
        return g - a * matmul(half, matmul(at_a.inverse, half.T))

    return _integral(centred, covariance).astype(jnp.result_type(gram))


def rms_cosine_step(cosine: int | float | Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The cosine after `rescale_rms_step` for infinitely many samples of equal norms and cosines.

    For the cosine ρ, the mean of a neuron over the batch is m = √(ρ/(1 − ρ)) ξ, with a standard
    normal ξ. The cosine after the layer is N/D with N = E[(m Φ(m) + φ(m))² / (m² + 1)] and D =
    E[((m² + 1) Φ(m) + m φ(m)) / (m² + 1)], where φ is the normal density and Φ its integral. The
    angle between orthogonal samples is 71.44° after one layer, 63.64° after two layers, and 59.05°
    after five layers. The gradient at 0 is zero. A negative cosine counts as 0. A cosine of at
    least 1, or below −1.01, gives NaN.

    Example:
      >>> print(jnp.degrees(jnp.arccos(rms_cosine_step(jnp.zeros(())))).round(2))
      71.44
    """
    cosine = floating(cosine, "cosine")
    nodes, weights = (jnp.asarray(a) for a in np.polynomial.hermite_e.hermegauss(80))

    def one(rho: Array) -> Array:
        odds = jnp.where(rho <= 0, 0, rho / (1 - rho))
        m = safe_sqrt(odds) * nodes.astype(rho.dtype)
        cdf, pdf = jax.scipy.stats.norm.cdf(m), jax.scipy.stats.norm.pdf(m)
        squares = jnp.square(m) + 1
        density = weights.astype(rho.dtype) / squares
        means = jnp.sum(density * jnp.square(m * cdf + pdf))
        return means / jnp.sum(density * (squares * cdf + m * pdf))

    return jnp.vectorize(one)(as_cosine(cosine)).astype(cosine.dtype)


def rms_angle() -> float:
    """The angle that `rms_cosine_step` does not change: 1.0254 radians, or 58.75 degrees.

    Figure 5 of Nachum et al. shows 60 degrees. The paper does not say whether the networks of
    Figure 5 divide by the root mean square about zero.

    Example:
      >>> round(math.degrees(rms_angle()), 2)
      58.75
    """
    # Even if a caller is traced, `ensure_compile_time_eval` computes the number that `float` needs.
    with jax.ensure_compile_time_eval():
        step, cosine = jax.jit(rms_cosine_step), jnp.zeros(())
        for _ in range(60):
            cosine = step(cosine)
        return math.acos(float(cosine))


class _Spectrum(NamedTuple):
    """The eigenvalues and eigenvectors of C, which derivatives treat as constants."""

    values: Float[Array, " n"]
    vectors: Float[Array, "n n"]


class _Resolvent(NamedTuple):
    """The matrices P (I + a C)⁻¹ and C (I + a C)⁻¹, and log det(I + a C).

    Here P is the projection to the range of C. Without P, the factor a would multiply rounding
    errors outside of the range.
    """

    inverse: Float[Array, "n n"]
    shrunk: Float[Array, "n n"]
    log_det: Float[Array, ""]


@jax.custom_jvp
def _resolvent(c: Float[Array, "n n"], a: Float[Array, ""], spectrum: _Spectrum) -> _Resolvent:
    values, vectors = spectrum
    divisors = 1 + a * values
    return _Resolvent(
        matmul(vectors * jnp.where(values > 0, 1 / divisors, 0)[None], vectors.T),
        matmul(vectors * (values / divisors)[None], vectors.T),
        jnp.log(divisors).sum(),
    )


@_resolvent.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[_Resolvent, _Resolvent]:
    # With X = (I + a C)⁻¹: dX = −a X dC X, and C X = (I − X)/a. If eigenvalues of C coincide, the
    # matrix X has a derivative although the eigenvectors do not. The number a does not depend on C.
    # Let N be the projection to the directions outside of the range of C. If the samples change, N
    # dC N is zero, so tr(P X dC) = tr(X dC). The rule for P X is exact only in products B (P X) Bᵀ
    # with B N = 0, such as the product in `rescale_step`, where B is `half`.
    (c, a, spectrum), (d, *_) = primals, tangents
    at_a = _resolvent(c, a, spectrum)
    change = -a * matmul(at_a.inverse, matmul(d, at_a.inverse))
    whole = jnp.eye(len(c), dtype=c.dtype) - a * at_a.shrunk
    shrunk = matmul(whole, matmul(d, whole))
    return at_a, _Resolvent(change, shrunk, a * jnp.sum(at_a.inverse * d.T))


def _unit_trace(gram: Float[Array, "n n"], min_samples: int = 1) -> Float[Array, "n n"]:
    """The matrix `gram` divided by its trace.

    The scale of `gram` does not change results, but at a small scale gradients would underflow.
    """
    g = replicate(as_gram(gram, min_samples=min_samples))
    g = g / unit_of(jnp.abs(g).max())  # the division keeps the sum of the diagonal finite
    trace = jax.lax.stop_gradient(jnp.trace(g))
    return g / jnp.where(trace <= 0, 1, trace)


def _about_zero(g: Float[Array, "n n"]) -> Float[Array, "n n"]:
    # ReLU halves the expected squares, so the trace is n. The division makes up for the share that
    # the integral omits, which is 0.3 % in float32 for a Gram matrix of rank 1.
    step = _integral(g, lambda _, at_a: at_a.shrunk)
    return step * (len(g) / jnp.trace(step))


def _integral(
    c: Float[Array, "n n"], covariance: Callable[[Array, _Resolvent], Array]
) -> Float[Array, "n n"]:
    """The integral n ∫ det(I + a C)^(−1/2) K(covariance(a)) / 2 da, where K is `relu_kernel`.

    The integral is computed by the trapezoidal rule in log a. The last node is the largest a at
    which rounding allows the inverse of I + a C. The integral beyond the last node is omitted. The
    omitted share is approximately ε^(3r/8) for the rank r of C and the rounding unit ε.
    """
    # The derivative rule of `_resolvent` needs symmetric tangents, so `c` is made symmetric.
    c = (c + c.T) / 2
    constant = jax.lax.stop_gradient(c)
    values, vectors = jnp.linalg.eigh(constant)
    eps = float(jnp.finfo(c.dtype).eps)
    spectrum = _Spectrum(jnp.where(values > 4 * eps * values[-1], values, 0), vectors)
    steps = jnp.arange(math.log(eps), -0.75 * math.log(eps), _STEP, dtype=c.dtype)
    nodes = jnp.exp(steps) / jnp.trace(constant)
    blocks = min(len(nodes), math.ceil(len(nodes) * c.size * c.dtype.itemsize / _BLOCK))

    def node(a: Array) -> Array:
        at_a = _resolvent(c, a, spectrum)
        g = covariance(a, at_a)
        return a * jnp.exp(-at_a.log_det / 2) * relu_kernel((g + g.T) / 2)

    # The sum over blocks is not a `scan`, because second derivatives of a `scan` would not use the
    # derivative rule of `_resolvent`.
    parts = (jax.vmap(node)(part).sum(0) for part in jnp.array_split(nodes, blocks))
    return len(c) * _STEP / 2 * sum(parts, jnp.zeros((), c.dtype))
