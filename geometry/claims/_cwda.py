"""Claims of the pruning paper (CWDA) whose printed and corrected forms differ."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from geometry.claims._claim import Claim
from geometry.claims._unitization import mean_norm
from pruning import l1_l2_ratio_variance, l1_norm, l2_norm, spearman

_PAPER = "CWDA"

_DIMS = 64

_FILTERS = 128
_FILTER_DIMS = 576  # 3 × 3 × 64


def _squared_deviation(key: Key[Array, ""]) -> Float[Array, ""]:
    """(r − 1)² of r = (l1/E l1)/(l2/E l2), whose mean is exactly 1."""
    filters = jax.random.normal(key, (1, _DIMS))
    ratio = l1_norm(filters)[0] / l2_norm(filters)[0]
    return jnp.square(ratio * (mean_norm(_DIMS) / (_DIMS * (2 / math.pi) ** 0.5)) - 1)


def _rank_correlation(key: Key[Array, ""]) -> Float[Array, ""]:
    """Spearman's correlation of the l1 and the l2 norms of a Gaussian layer."""
    filters = jax.random.normal(key, (_FILTERS * _FILTER_DIMS,)).reshape(_FILTERS, -1)
    return spearman(l1_norm(filters), l2_norm(filters))


def _mean_rank_correlation(filters: int, dims: int) -> float:
    """`pruning.expected_spearman` of l1 and l2, without waking a device at import.

    6 (asin ρ + (N − 2) asin(ρ/2)) / (π (N + 1)), ρ² = CV(l2)²/CV(l1)².
    """
    l1, l2 = (math.pi / 2 - 1) / dims, dims / mean_norm(dims) ** 2 - 1
    rho = (l2 / l1) ** 0.5
    total = math.asin(rho) + (filters - 2) * math.asin(rho / 2)
    return 6 * total / (math.pi * (filters + 1))


CLAIMS = (
    Claim(
        paper=_PAPER,
        name="Theorem 1, proof",
        statement="Var(l1/l2) of a Gaussian filter in n = 64 dimensions, both scaled to mean 1",
        printed="Var ≈ (π − 1)/(2n), hence ≲ 1/n",
        corrected="Var = (1 + CV₁²)/(1 + CV₂²) − 1 ≈ (π − 3)/(2n): the bound stands, but the "
        "printed value is that of independent l1 and l2, fifteen times too large",
        kind="value",
        printed_value=(math.pi - 1) / (2 * _DIMS),
        predicted=l1_l2_ratio_variance(_DIMS)[0],
        draw=_squared_deviation,
        samples=100_000,
    ),
    Claim(
        paper=_PAPER,
        name="Section 3.2, l1 and l2 rank alike",
        statement="E Sp of l1 and l2 over N = 128 Gaussian filters in 576 dimensions",
        printed="Sp → 1 as the dimension grows",
        corrected="Sp → (6/π) asin(1/(2√(π − 2))) = 0.9301, from above; E Sp is lower by O(1/N)",
        kind="value",
        printed_value=1.0,
        predicted=_mean_rank_correlation(_FILTERS, _FILTER_DIMS),
        draw=_rank_correlation,
        samples=200,
    ),
)
