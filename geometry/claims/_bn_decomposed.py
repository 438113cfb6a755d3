"""Claims of "Batch Normalization Decomposed" whose printed and corrected forms differ."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from geometry._kernel import expected_norm_factor
from geometry._odd_point import invariant_representation
from geometry.claims._claim import Claim
from jaxnorm import recenter

_PAPER = "Batch Normalization Decomposed"

_POINTS = 5  # on the circle, and in the batch of Theorem 14
_WIDTH = 20


def _cell_indicator(key: Key[Array, ""]) -> Float[Array, ""]:
    """1 if a Gaussian w lies in the same cell as the first point itself."""
    turn = jnp.linspace(0, 2 * math.pi, _POINTS, endpoint=False)
    x = jnp.stack([jnp.cos(turn), jnp.sin(turn)], axis=1)
    signs = jnp.sign(x @ jax.random.normal(key, (2,)))
    return jnp.all(signs == jnp.sign(x @ x[0])).astype(x.dtype)


def _odd_norm(key: Key[Array, ""]) -> Float[Array, ""]:
    """‖x₁′‖ after one layer of recentering and ReLU, with Theorem 14's variance 2 alpha/d."""
    n = _POINTS
    x = invariant_representation(n, 2)
    alpha = (n / (n - 1)) ** 2 / jnp.sum(jnp.square(x[0] - x[1]))
    w = jax.random.normal(key, (2, _WIDTH)) * jnp.sqrt(2 * alpha / _WIDTH)
    return jnp.linalg.norm(jax.nn.relu(recenter(x @ w)[0]))


CLAIMS = (
    Claim(
        paper=_PAPER,
        name="Definition 1, example",
        statement="γ(X) of n = 5 equally spaced points on the circle",
        printed="n cells, γ = 1/n",
        corrected="2n cells, γ = 1/(2n)",
        kind="value",
        printed_value=1 / _POINTS,
        predicted=1 / (2 * _POINTS),
        draw=_cell_indicator,
        samples=200_000,
    ),
    Claim(
        paper=_PAPER,
        name="Theorem 14, item 1",
        statement="E ‖x₁′‖ after one layer of width d = 20",
        printed="E ‖x₁′‖ = 1",
        corrected="E ‖x₁′‖² = 1, and E ‖x₁′‖ = 1 − 5/(8d) + O(d⁻²), known exactly",
        kind="value",
        printed_value=1.0,
        predicted=expected_norm_factor(_WIDTH),
        draw=_odd_norm,
        samples=50_000,
    ),
)
