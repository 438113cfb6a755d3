"""Section 3.3: Equations 6 and 7, Theorem 3.1."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Computed, Remark, Values, claims_of
from geometry.claims.unitization._pairs import (
    distances,
    distances_of_outputs,
    dual,
    opposite,
    pairs,
)
from jaxnorm import shift, unit_vector

claim = claims_of("Unitization")


def unit_vectors(key: Key[Array, ""]) -> Values:
    """Eq. 6 minus x/‖x‖, ‖g(x)‖ − 1 at 0 too, g(3x) − g(x), and 0 times the gradient at 0."""
    x = jnp.asarray(np.vstack([np.zeros(4), generator(key).normal(size=(50, 4))]))
    g = np.asarray(unit_vector(x))
    printed = np.asarray(x[1:]) / np.linalg.norm(x[1:], axis=1, keepdims=True)
    gradient = jax.grad(lambda x: unit_vector(x).sum())(x)
    lengths = np.linalg.norm(g, axis=1) - 1
    return [g[1:] - printed, lengths, unit_vector(3 * x) - g, 0 * gradient]


EQUATION_6 = claim(
    "Equation 6",
    r"$g(x) = x/\|x\|$, a fixed unit vector at 0",
    Computed("as printed, scale free, finite gradient at 0", unit_vectors, tolerance=1e-12),
)


def transported_distances(key: Key[Array, ""]) -> Values:
    """W of the outputs over the value of the dual for them, minus 1: Eq. 7."""
    rng = generator(key)
    x, y = (unit_vector(jnp.asarray(rng.normal(size=(6, 2)))) for _ in range(2))
    return shift.emd(x, y) / dual(np.asarray(x), np.asarray(y)) - 1


EQUATION_7 = claim(
    "Equation 7",
    "$W$ of transformed outputs is that of the transformed points",
    Computed("by the dual", transported_distances, tolerance=1e-8),
)

LENGTHS = np.geomspace(1e-3, 1e3, 13)


def theorem_31(key: Key[Array, ""]) -> Values:
    """W over the bound, minus 1."""
    bound = float(shift.unitized_upper_bound(1.0))
    return distances_of_outputs(*pairs(key), unit_vector) / bound - 1


def theorem_31_attained(key: Key[Array, ""]) -> Values:
    """W over the bound, minus 1, of opposite points; the bound minus 2."""
    bound = float(shift.unitized_upper_bound(1.0))
    return [distances_of_outputs(*opposite(LENGTHS, 1), unit_vector) / bound - 1, bound - 2]


def theorem_31_sharp(key: Key[Array, ""]) -> Values:
    """W minus √(2 − 2⟨E g(X), E g(Y)⟩)."""
    x, y = pairs(key)
    return distances_of_outputs(x, y, unit_vector) - _by_means(x, y)


def theorem_31_sharp_attained(key: Key[Array, ""]) -> Values:
    """The same of ±x and ±y for perpendicular x and y, and of single points."""
    x, y = (np.zeros((1, 2, 4)) for _ in range(2))
    x[0, :, 0], y[0, :, 1] = (3, -3), (0.1, -0.1)
    points, others = generator(key).normal(size=(2, 20, 1, 4))
    return [
        distances_of_outputs(a, b, unit_vector) - _by_means(a, b)
        for a, b in ((x, y), (points, others))
    ]


def _by_means(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    m, n = (np.asarray(unit_vector(jnp.asarray(part))).mean(1) for part in (x, y))
    return np.sqrt(np.maximum(2 - 2 * (m * n).sum(1), 0))


def unit_vectors_apart(key: Key[Array, ""]) -> Values:
    """W of opposite points after Eq. 6 over W before, minus 1."""
    x, y = opposite(LENGTHS, 0)
    return distances_of_outputs(x, y, unit_vector) / distances(x, y) - 1


THEOREM_31 = claim(
    "Theorem 3.1",
    r"$W(g(X), g(Y)) \le 2$ for Eq. 6",
    Computed("any distributions", theorem_31, "inequality"),
    Computed("attained by opposite points", theorem_31_attained),
    Computed.corrected("W ≤ √(2 − 2⟨E g(X), E g(Y)⟩)", theorem_31_sharp, "inequality"),
    Computed.corrected("the same is attained", theorem_31_sharp_attained, tolerance=1e-8),
    Computed.overread("unitizing does not increase W", unit_vectors_apart, "inequality"),
    corrected=r"$\sqrt{2 - 2\langle E\,g(X), E\,g(Y)\rangle}$, never above 2",
    remark=Remark(
        "over-reading",
        "It bounds $W$ and need not reduce it: two points 0.002 apart may become 2 apart. In units "
        r"of the size of an output, 1, the bound of centered data is $\sqrt{2}$, as batch norm's "
        "is. The appendix restates it with $x$ drawn from $p_U$, for $p$.",
    ),
    why="$f(g(x))$ lies in $[-1, 1]$ if $f(0) = 0$. Samples that are drawn independently are "
    r"$\sqrt{2 - 2\langle E\,g(X), E\,g(Y)\rangle}$ apart in the root mean "
    "square.",
)
