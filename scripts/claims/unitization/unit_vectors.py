"""Section 3.3, with Equations 6 and 7 and Theorem 3.1 on unit vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from claims.draws import generator
from claims.unitization._pairs import distances, distances_of_outputs, dual, opposite, pairs
from geometry.claims import Claim, Remark, Values
from jaxnorm import shift, unit_vector

claim = partial(Claim, "Unitization")


def unit_vectors(key: Key[Array, ""]) -> Values:
    """Numbers that should be 0 for the map g of Equation 6.

    The numbers are g(x) − x/‖x‖, ‖g(x)‖ − 1 (also at 0), g(3x) − g(x), and 0 times the gradient.
    The last number is NaN if the gradient at 0 is not finite.
    """
    x = jnp.asarray(np.vstack([np.zeros(4), generator(key).normal(size=(50, 4))]))
    g = np.asarray(unit_vector(x))
    printed = np.asarray(x[1:]) / np.linalg.norm(x[1:], axis=1, keepdims=True)
    gradient = jax.grad(lambda x: unit_vector(x).sum())(x)
    lengths = np.linalg.norm(g, axis=1) - 1
    return [g[1:] - printed, lengths, unit_vector(3 * x) - g, 0 * gradient]


EQUATION_6 = claim(
    "Equation 6", r"Unitization maps $x$ to $g(x) = x/\|x\|$, and $g(0)$ is a fixed unit vector"
)
EQUATION_6.equal("as printed, scale free, finite gradient at 0", tolerance=1e-12)(unit_vectors)


EQUATION_7 = claim(
    "Equation 7",
    "The distance $W$ between the distributions of transformed outputs equals $W$ between the "
    "transformed points",
)


@EQUATION_7.equal("by the dual", tolerance=1e-8)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, y = (unit_vector(jnp.asarray(rng.normal(size=(6, 2)))) for _ in range(2))
    return shift.emd(x, y) / dual(np.asarray(x), np.asarray(y)) - 1


LENGTHS = np.geomspace(1e-3, 1e3, 13)


def _by_means(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    m, n = (np.asarray(unit_vector(jnp.asarray(part))).mean(1) for part in (x, y))
    return np.sqrt(np.maximum(2 - 2 * (m * n).sum(1), 0))


THEOREM_31 = claim(
    "Theorem 3.1",
    r"$W(g(X), g(Y)) \le 2$ for outputs of Equation 6",
    corrected=r"The bound $W \le \sqrt{2 - 2\langle E\,g(X), E\,g(Y)\rangle}$ holds, and is never "
    "above 2",
    remark=Remark(
        "over-reading",
        "Theorem 3.1 bounds $W$, but unitization can also increase $W$. For example, two points "
        "at the distance 0.002 can have the distance 2 after unitization. If the unitized outputs "
        r"of one of the two iterations have the mean 0, $W$ is at most $\sqrt{2}$. In the "
        "appendix, Theorems 3.1 and 3.2 draw $x$ from the distribution $p_U$ of the unitized "
        "outputs, but $x$ must have the distribution of the outputs before unitization.",
    ),
    why="For a 1-Lipschitz function $f$ with $f(0) = 0$, the value $f(g(x))$ lies in $[-1, 1]$. "
    r"Two samples that are drawn independently have the root mean square distance $\sqrt{2 - "
    r"2\langle E\,g(X), E\,g(Y)\rangle}$.",
)


@THEOREM_31.at_most("any distributions")
def _(key: Key[Array, ""]) -> Values:
    bound = float(shift.unitized_upper_bound(1.0))
    return distances_of_outputs(*pairs(key), unit_vector) / bound - 1


@THEOREM_31.equal("attained by opposite points")
def _() -> Values:
    bound = float(shift.unitized_upper_bound(1.0))
    return [distances_of_outputs(*opposite(LENGTHS, 1), unit_vector) / bound - 1, bound - 2]


@THEOREM_31.at_most("W ≤ √(2 − 2⟨E g(X), E g(Y)⟩)", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    x, y = pairs(key)
    return distances_of_outputs(x, y, unit_vector) - _by_means(x, y)


@THEOREM_31.equal("√(2 − 2⟨E g(X), E g(Y)⟩) is attained", tolerance=1e-8, form="corrected")
def _(key: Key[Array, ""]) -> Values:
    x, y = (np.zeros((1, 2, 4)) for _ in range(2))
    x[0, :, 0], y[0, :, 1] = (3, -3), (0.1, -0.1)
    points, others = generator(key).normal(size=(2, 20, 1, 4))
    return [
        distances_of_outputs(a, b, unit_vector) - _by_means(a, b)
        for a, b in ((x, y), (points, others))
    ]


def _centered() -> Values:
    """The earth mover distance W between ten unitized samples and their negatives.

    Before unitization, nine samples are e₁ and one sample is −9 e₁, so the mean is 0.
    """
    x = np.zeros((1, 10, 4))
    x[0, :, 0] = [1.0] * 9 + [-9.0]
    return distances_of_outputs(x, -x, unit_vector)


@THEOREM_31.equal("W = 1.6 of centered inputs", 1.6, form="corrected")
def _() -> Values:
    return _centered()


@THEOREM_31.at_most("W ≤ √2 for centered inputs", 2**0.5, form="overread")
def _() -> Values:
    return _centered()


@THEOREM_31.at_most("unitizing does not increase W", form="overread")
def _() -> Values:
    x, y = opposite(LENGTHS, 0)
    return distances_of_outputs(x, y, unit_vector) / distances(x, y) - 1
