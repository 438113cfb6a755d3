"""Sections 3.3 and 3.4 up to Theorem 3.3: Equations 6, 8 and 9, and the bounds they obey."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Values, claims_of
from geometry.claims.unitization._pairs import (
    bounds_of,
    distances,
    distances_of_outputs,
    dual,
    excess,
    pairs,
)
from jaxnorm import shift, unit_vector, unitize_bounded

claim = claims_of("Unitization")


def unit_vectors(key: Key[Array, ""]) -> Values:
    """‖g(x)‖ − 1 of Eq. 6, g(3x) − g(x), and the gradient at 0, which must be finite."""
    x = jnp.asarray(np.vstack([np.zeros(4), generator(key).normal(size=(50, 4))]))
    g = unit_vector(x)
    gradient = jax.grad(lambda x: unit_vector(x).sum())(x)
    return [np.linalg.norm(g, axis=1) - 1, unit_vector(3 * x) - g, 0 * gradient]


EQUATION_6 = claim(
    "Equation 6",
    "g(x) = x/‖x‖, a fixed unit vector at 0",
    Computed("norm 1, scale free, finite gradient at 0", unit_vectors, tolerance=1e-12),
)


def transported_distances(key: Key[Array, ""]) -> Values:
    """W of the outputs over the value of the dual for them, minus 1: Eq. 7."""
    rng = generator(key)
    x, y = (unit_vector(jnp.asarray(rng.normal(size=(6, 2)))) for _ in range(2))
    return shift.emd(x, y) / dual(np.asarray(x), np.asarray(y)) - 1


EQUATION_7 = claim(
    "Equation 7",
    "W of transformed outputs is that of the transformed points",
    Computed("by the dual", transported_distances, tolerance=1e-8),
)


def theorem_31(key: Key[Array, ""]) -> Values:
    """W over 2, minus 1."""
    return distances_of_outputs(unit_vector) / 2 - 1


def theorem_31_sharp(key: Key[Array, ""]) -> Values:
    """W minus √(2 − 2⟨E g(X), E g(Y)⟩)."""
    m, n = (np.asarray(unit_vector(jnp.asarray(part))).mean(1) for part in pairs())
    bound = np.sqrt(np.maximum(2 - 2 * (m * n).sum(1), 0))
    return distances_of_outputs(unit_vector) - bound


THEOREM_31 = claim(
    "Theorem 3.1",
    "W(g(X), g(Y)) ≤ 2 for Eq. 6",
    Computed("any distributions", theorem_31, "inequality"),
    Computed.corrected("W ≤ √(2 − 2⟨E g(X), E g(Y)⟩)", theorem_31_sharp, "inequality"),
    corrected="√(2 − 2⟨E g(X), E g(Y)⟩); it bounds W and need not reduce it",
    remark=Remark("over-reading", "holds, tight"),
)


def bounded(alpha: float | Sequence[float]) -> Callable[[Array], Array]:
    """Eq. 8 for a scalar alpha, Eq. 9 for one per feature."""
    return partial(unitize_bounded, alpha=jnp.asarray(alpha))


def stretch(key: Key[Array, ""]) -> Values:
    """W of Eq. 8's outputs over W/(1 − alpha), minus 1."""
    distance = distances(*pairs())
    return [excess(distances_of_outputs(bounded(a)), distance / (1 - a)) for a in (0.0, 0.3, 0.9)]


def increases(key: Key[Array, ""]) -> Values:
    """W of ±10⁻³ e₁ after Eq. 8 at alpha 0.9 over W: printed as a reduction, at most 1."""
    x = jnp.asarray([[1e-3, 0.0]])
    g = bounded(0.9)
    return shift.emd(g(x), g(-x)) / shift.emd(x, -x) - 1


EQUATION_8 = claim(
    "Equation 8",
    "g(x) = x/(alpha‖x‖ + 1 − alpha)",
    Computed("W(g(X), g(Y)) ≤ W/(1 − alpha)", stretch, "inequality"),
    Computed.rejected("it does not increase W", increases, "inequality", tolerance=0.01),
    printed="read as a reduction",
    corrected="W may grow, up to 1/(1 − alpha) times",
)

SCALARS = (0.0, 0.1, 0.5, 0.9)
VECTORS = ((0.0, 1.0, 0.5, 0.2), (0.3, 0.9, 1.0, 0.4), (0.0, 0.0, 0.1, 0.0))


def _excess_of_outputs(bound: Callable, alphas: Sequence) -> Cases:
    """W of the outputs of Eqs. 8 and 9 over `bound` of alpha and the inputs, minus 1."""
    for alpha in alphas:
        limit = bounds_of(partial(bound, jnp.asarray(alpha)), *pairs())
        yield excess(distances_of_outputs(bounded(alpha)), limit)


def theorem_32(key: Key[Array, ""]) -> Cases:
    """W over the printed bound, minus 1."""
    return _excess_of_outputs(shift.unitized_upper_bound, SCALARS)


def theorem_32_sharp(key: Key[Array, ""]) -> Cases:
    """W over the corrected bound, minus 1."""
    return _excess_of_outputs(shift.sharp_unitized_upper_bound, SCALARS)


def different_alphas(key: Key[Array, ""]) -> Values:
    """W of outputs of alpha 0.3 and 0.8 over 1/0.3 + 1/0.8, minus 1."""
    return distances_of_outputs(bounded(0.3), bounded(0.8)) / (1 / 0.3 + 1 / 0.8) - 1


THEOREM_32 = claim(
    "Theorem 3.2",
    "Eq. 8: W ≤ 2/alpha, and E‖X‖ + E‖Y‖ at alpha = 0",
    Computed("four alphas", theorem_32, "inequality"),
    Computed.corrected("W ≤ E h(‖X‖) + E h(‖Y‖)", theorem_32_sharp, "inequality"),
    Computed.corrected("different alphas: 1/alpha + 1/alpha′", different_alphas, "inequality"),
    corrected="E h(‖X‖) + E h(‖Y‖), h(r) = r/(alpha r + 1 − alpha), for every alpha",
    remark=Remark("over-reading", "holds, tight"),
)


def singular_radii(key: Key[Array, ""]) -> Values:
    """1 + alpha (r − 1) at r = 1 − 1/alpha for alpha outside [0, 1], and excess of min(1, r)."""
    zeros = [1 + a * (1 - 1 / a - 1) for a in (-0.5, 2.0, -3.0)]
    rng = generator(key)
    a, r = rng.uniform(0, 1, 1000), 10 ** rng.uniform(-3, 3, 1000)
    below = np.maximum(np.minimum(1, r) - (1 + a * (r - 1)), 0)
    return [*zeros, float(below.max())]


EQUATION_9 = claim(
    "Equation 9",
    "gᵢ(x) = xᵢ/(1 + alphaᵢ(‖x‖ − 1))",
    Computed(
        "singular only outside [0, 1], at ‖x‖ = 1 − 1/alphaᵢ", singular_radii, tolerance=1e-12
    ),
)


def theorem_33(key: Key[Array, ""]) -> Cases:
    """W over the printed bound, minus 1."""
    return _excess_of_outputs(shift.unitized_upper_bound, VECTORS)


def theorem_33_sharp(key: Key[Array, ""]) -> Cases:
    """W over the corrected bound, minus 1."""
    return _excess_of_outputs(shift.sharp_unitized_upper_bound, VECTORS)


def two_is_needed(key: Key[Array, ""]) -> Values:
    """W of (0, ±δ) at alpha (0, 1): 2, while E‖X‖ + E‖Y‖ = 2δ."""
    x = jnp.asarray([[0.0, 1e-6]])
    g = bounded((0.0, 1.0))
    return shift.emd(g(x), g(-x))


THEOREM_33 = claim(
    "Theorem 3.3",
    "Eq. 9: W ≤ 2/min alpha, and E‖X‖ + E‖Y‖ + 2 at min alpha = 0",
    Computed("three vectors alpha", theorem_33, "inequality"),
    Computed.corrected("the +2 is needed", two_is_needed, predicted=2.0),
    Computed.corrected("W ≤ E r/m(r) of both", theorem_33_sharp, "inequality"),
    corrected="E max(‖X‖, 1) + E max(‖Y‖, 1) at min alpha = 0",
    remark=Remark("over-reading", "holds, proof repaired"),
)
