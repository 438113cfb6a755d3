"""Claims of the unitization paper (Huang and Yu) whose printed and corrected forms differ.

Earth mover distances are not estimated from samples: each draw has a mean that is the distance,
or a lower bound of it, for two Gaussians that make it explicit.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from scipy.special import hyp1f1

from geometry.claims._claim import Claim
from jaxnorm import BatchStatistics, unitize, unitized_batch_norm

_PAPER = "Unitization"

_ALPHA = 0.5
_DIMS = 64
_SMALL, _LARGE = 1.0, 3.0  # standard deviations of the two Gaussians

_HEIGHT, _WIDTH, _CHANNELS = 8, 8, 16
_SIZE = _HEIGHT * _WIDTH * _CHANNELS
_SHIFT = 1.0  # of every pixel, in standard deviations, up in one Gaussian and down in the other


def _radial_transport(key: Key[Array, ""]) -> Float[Array, ""]:
    """How far Eq. 10 leaves s₁z from s₂z.

    Samples of equal direction are coupled. No coupling is cheaper: the norm is 1-Lipschitz, and
    the mean norms already differ by as much.
    """
    z = jax.random.normal(key, (_DIMS,))
    x, y = (unitize(s * z, _ALPHA, eps=1e-12) for s in (_SMALL, _LARGE))
    return jnp.linalg.norm(x - y)


def _mean_difference(key: Key[Array, ""]) -> Float[Array, ""]:
    """How much longer images of mean +m u lie along u than images of mean −m u."""
    shape = (2, _HEIGHT, _WIDTH, _CHANNELS)
    sign = jnp.array([1.0, -1.0]).reshape(2, 1, 1, 1)
    x = sign * _SHIFT + jax.random.normal(key, (2 * _SIZE,)).reshape(shape)
    one = jnp.ones(_CHANNELS)
    moments = BatchStatistics(jnp.zeros(_CHANNELS), one, jnp.ones(()))
    y, _ = unitized_batch_norm(x, one, statistics=moments, eps=0.0)
    return (y[0] - y[1]).sum() / _SIZE**0.5


def mean_norm(dims: int) -> float:
    """E ‖z‖ of a standard Gaussian, √2 Γ((d+1)/2) / Γ(d/2)."""
    return 2**0.5 * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))


def _mean_cosine(dims: int, m: float) -> float:
    """E cos(u, X) of X ~ N(m u, I): (m/√2) Γ((d+1)/2) / Γ(d/2 + 1) ₁F₁(1/2; d/2 + 1; −m²/2)."""
    ratio = math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2 + 1))
    return m / 2**0.5 * ratio * float(hyp1f1(0.5, dims / 2 + 1, -(m**2) / 2))


CLAIMS = (
    Claim(
        paper=_PAPER,
        name="Eq. 10, claimed to obey Theorem 3.2",
        statement="W(g(X), g(Y)) of X ~ N(0, I), Y ~ N(0, 9 I) in 64 dimensions, alpha = 1/2",
        printed="W ≤ 2/alpha",
        corrected="W = (1 − alpha)(s₂ − s₁) E‖z‖, which grows without bound; "
        "what holds is W ≤ 2 + (1 − alpha)(E(‖X‖ − 1)₊ + E(‖Y‖ − 1)₊)",
        kind="upper bound",
        printed_value=2 / _ALPHA,
        predicted=(1 - _ALPHA) * (_LARGE - _SMALL) * mean_norm(_DIMS),
        draw=_radial_transport,
        samples=20_000,
    ),
    Claim(
        paper=_PAPER,
        name="Algorithm 2 at alpha = 1, claimed to obey Theorem 3.1",
        statement="‖E g(X) − E g(Y)‖ ≤ W(g(X), g(Y)) of 8×8×16 images X ~ N(1, I), Y ~ N(−1, I)",
        printed="W ≤ 2",
        corrected="2HW E cos(u, X) ≤ W ≤ 2HW: line 9's n = HW gives every image the norm HW",
        kind="upper bound",
        printed_value=2.0,
        predicted=2 * _HEIGHT * _WIDTH * _mean_cosine(_SIZE, _SHIFT * _SIZE**0.5),
        draw=_mean_difference,
        samples=2_000,
    ),
)
