"""Whether the filters of a layer are uncorrelated and alike: their covariance matrix, judged."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import auto_sharded, matmul
from pruning._arguments import matrix


class Covariance(NamedTuple):
    """z-scores that are N(0, 1) for Gaussian filters, and the spectrum beside its known edges.

    Eigenvalues are in units of the mean variance c². Those of Gaussian filters fill the interval
    of Marchenko and Pastur, (1 ± √(n/(dims − 1)))²: entries near a multiple of the identity do not
    make a matrix near it.
    """

    diagonal: Float[Array, ""]  # spread of the variances
    off_diagonal: Float[Array, ""]  # mean square of the correlations
    sphericity: Float[Array, ""]  # John's U against a multiple of the identity
    off_diagonal_mass: Float[Array, ""]  # Σᵢ≠ⱼ Cᵢⱼ² over Σ Cᵢᵢ²; (n − 1)/(dims + 1) is expected
    smallest: Float[Array, ""]  # eigenvalue other than those that are zero as n ≥ dims
    largest: Float[Array, ""]
    low: Float[Array, ""]  # edge
    high: Float[Array, ""]


@auto_sharded
def covariance(filters: Float[Array, "filters dims"]) -> Float[Array, "filters filters"]:
    """Covariance of the filters with each other: rows centred, divided by dims − 1. Figure 6."""
    h = matrix(filters)
    h = h - h.mean(1, keepdims=True)
    return matmul(h, h.T) / (filters.shape[1] - 1)


@auto_sharded
def covariance_report(filters: Float[Array, "filters dims"]) -> Covariance:
    """Diagnostics of the covariance of filters, each with its exact mean and variance.

    With ν = dims − 1 and c² the mean variance: νCᵢᵢ/c² is χ² of ν degrees; the squared
    correlations have mean 1/ν and are pairwise independent, so that their average has variance
    2(ν − 1)/(ν²(ν + 2)) over n(n − 1)/2; (νU − n − 1)/2 for U = tr (C/c² − I)²/n is N(0, 1) for
    many filters and dims (Ledoit and Wolf 2002). Orthogonal filters have off_diagonal far below 0.
    A constant filter, which has no correlations, gives NaN.

    Raises:
      ValueError: If there are fewer than two filters or three dims.
    """
    n, dims = matrix(filters).shape
    if n < 2 or dims < 3:
        raise ValueError(f"there must be at least two filters and three dims; got {filters.shape}")
    nu = dims - 1
    c = covariance(filters)
    variances = jnp.diagonal(c)
    c = c / variances.mean()
    relative = jnp.diagonal(c)
    spread = nu / 2 * jnp.square(relative - 1).sum()
    others = ~jnp.eye(n, dtype=bool)
    square = jnp.where(others, jnp.square(c), 0)
    inverse = 1 / relative
    correlation = (square * inverse[:, None] * inverse[None, :]).sum() / (n * (n - 1))
    stderr = (2 * (nu - 1) / (nu**2 * (nu + 2)) / (n * (n - 1) / 2)) ** 0.5
    u = (square.sum() + jnp.square(relative - 1).sum()) / n
    values = jnp.linalg.eigvalsh(c)
    edge = (n / nu) ** 0.5
    return Covariance(
        diagonal=(spread - (n - 1)) / ((n - 1) * (2 + 12 / nu)) ** 0.5,
        off_diagonal=(correlation - 1 / nu) / stderr,
        sphericity=(nu * u - n - 1) / 2,
        off_diagonal_mass=square.sum() / jnp.square(relative).sum(),
        smallest=values[max(n - nu, 0)],
        largest=values[-1],
        low=jnp.asarray((1 - edge) ** 2, c.dtype),
        high=jnp.asarray((1 + edge) ** 2, c.dtype),
    )
