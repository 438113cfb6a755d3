"""Section 3.4 up to Theorem 3.3, on Equations 8 and 9 and the bounds on their outputs."""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from claims.draws import generator
from claims.unitization._pairs import (
    bounds_at,
    distances,
    distances_of_outputs,
    excess,
    opposite,
    pairs,
)
from geometry.claims import Cases, Claim, Remark, Values
from jaxnorm import shift, unitize_bounded

claim = partial(Claim, "Unitization")

SCALARS = (0.0, 0.1, 0.5, 0.9)
VECTORS = ((0.0, 1.0, 0.5, 0.2), (0.3, 0.9, 1.0, 0.4), (0.0, 0.0, 0.1, 0.0))
LENGTHS = np.geomspace(1e-3, 1e3, 14)
FAR = np.array([1e9])


def bounded(alpha: float | Sequence[float]) -> Callable[[Array], Array]:
    """The layer of Equation 8 for a scalar alpha, or of Equation 9 for one alpha per feature."""
    return partial(unitize_bounded, alpha=jnp.asarray(alpha))


EQUATION_8 = claim(
    "Equation 8",
    r"The layer is $g(x) = x/(\alpha\|x\| + 1 - \alpha)$, and for $\alpha = 1$, $g(0)$ is a unit "
    "vector",
    remark=Remark(
        "over-reading",
        "The layer of Equation 8 bounds $W$, but the layer can also increase $W$, by a factor of "
        r"up to $1/(1 - \alpha)$.",
    ),
    why=r"The Lipschitz constant of the layer $g$ is $1/(1 - \alpha)$, which is the norm of the "
    "Jacobian of $g$ at 0.",
)


@EQUATION_8.equal("as printed", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    x = generator(key).standard_t(2, (50, 4))
    for a in (*SCALARS, 1.0):
        g = bounded(a)
        yield np.asarray(g(jnp.asarray(x))) - x / (a * np.linalg.norm(x, axis=1)[:, None] + 1 - a)
        yield jnp.linalg.norm(g(jnp.zeros(4))) - float(a == 1)


@EQUATION_8.at_most("W(g(X), g(Y)) ≤ W/(1 − alpha)")
def _(key: Key[Array, ""]) -> Cases:
    x, y = pairs(key)
    distance = distances(x, y)
    for a in (0.0, 0.3, 0.9):
        yield excess(distances_of_outputs(x, y, bounded(a)), distance / (1 - a))


@EQUATION_8.equal("attained next to 0", tolerance=2e-6)
def _() -> Cases:
    x, y = opposite(np.array([1e-7]), 2)
    for a in (0.0, 0.3, 0.9):
        yield distances_of_outputs(x, y, bounded(a)) / (distances(x, y) / (1 - a)) - 1


@EQUATION_8.at_most("the layer of Equation 8 does not increase W", tolerance=0.01, form="overread")
def _() -> Values:
    x, y = opposite(LENGTHS, 0)
    return distances_of_outputs(x, y, bounded(0.9)) / distances(x, y) - 1


def _ratios(bound: Callable, alphas: Sequence, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """For each alpha, by how much the outputs' distance exceeds the bound, divided by the bound."""
    return [
        excess(
            distances_of_outputs(x, y, bounded(alpha)), bounds_at(bound, jnp.asarray(alpha), x, y)
        )
        for alpha in alphas
    ]


def _different_alphas(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return distances_of_outputs(x, y, bounded(0.3), bounded(0.8)) / (1 / 0.3 + 1 / 0.8) - 1


THEOREM_32 = claim(
    "Theorem 3.2",
    r"Outputs of Equation 8 have $W \le 2/\alpha$, and $W \le E\|X\| + E\|Y\|$ at $\alpha = 0$",
    printed=r"Theorem 3.2, with one $\alpha$ of $[0, 1]$ for both distributions",
    corrected=r"For every $\alpha$, $W \le E\,h(\|X\|) + E\,h(\|Y\|)$ with $h(r) = r/(\alpha r + "
    r"1 - \alpha)$",
    remark=Remark(
        "hypothesis",
        r"Theorem 3.2 assumes that $\alpha$ is equal at the two iterations, but training changes "
        r"$\alpha$. With $\alpha$ at one iteration and $\alpha'$ at another iteration, the "
        r"bound of $W$ is $1/\alpha + 1/\alpha'$. Theorem 3.2 is about outputs before the scale "
        r"$\gamma$ and the bias $\beta$.",
    ),
    why=r"The norm of $g(x)$ is $h(\|x\|)$, which rises to $1/\alpha$. The corrected bound is at "
    r"most the printed bound and is continuous in $\alpha$, whereas the printed bound jumps at "
    r"$\alpha = 0$.",
)


@THEOREM_32.at_most("W ≤ the bound for four values of alpha")
def _(key: Key[Array, ""]) -> Values:
    return _ratios(shift.unitized_upper_bound, SCALARS, *pairs(key))


@THEOREM_32.equal("attained by points at ±10⁹ e₃", tolerance=1e-7)
def _() -> Values:
    return _ratios(shift.unitized_upper_bound, SCALARS, *opposite(FAR, 2))


@THEOREM_32.at_most("W ≤ E h(‖X‖) + E h(‖Y‖)", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return _ratios(shift.sharp_unitized_upper_bound, SCALARS, *pairs(key))


@THEOREM_32.equal("attained by all opposite points", form="corrected")
def _() -> Values:
    return _ratios(shift.sharp_unitized_upper_bound, SCALARS, *opposite(LENGTHS, 2))


@THEOREM_32.at_most("different alphas: 1/alpha + 1/alpha′", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return _different_alphas(*pairs(key))


@THEOREM_32.equal(
    "1/alpha + 1/alpha′ is attained by points at ±10⁹ e₃", tolerance=1e-7, form="corrected"
)
def _() -> Values:
    return _different_alphas(*opposite(FAR, 2))


EQUATION_9 = claim(
    "Equation 9",
    r"The layer is $g_i(x) = x_i/(1 + \alpha_i(\|x\| - 1))$, and $g(0) = 0$",
    remark=Remark(
        "hypothesis",
        r"For $\alpha$ outside $[0, 1]$, Equation 9 has a pole, at which an output changes its "
        r"sign. At $x = 0$ and $\alpha = 1$, Equation 9 gives 0, but Equations 6 and 8 give a "
        "unit vector.",
    ),
)


@EQUATION_9.equal("as printed, by the inverse of the matrix", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    x = generator(key).standard_t(2, (50, 4))
    for alpha in VECTORS:
        matrices = (np.linalg.norm(x, axis=1) - 1)[:, None, None] * np.diag(alpha) + np.eye(4)
        printed = np.linalg.solve(matrices, x[..., None])[..., 0]
        g = bounded(alpha)
        yield [np.asarray(g(jnp.asarray(x))) - printed, g(jnp.zeros(4))]


@EQUATION_9.at_most("in [0, 1] the divisor is at least min(1, ‖x‖)")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    alpha = jnp.asarray([0.0, 1.0, *rng.uniform(0, 1, 30)])
    x = 10 ** rng.uniform(-3, 3, (300, 1)) * rng.normal(size=(300, 32))
    divisor = x / np.asarray(unitize_bounded(jnp.asarray(x), alpha))
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return (np.minimum(1, length) - divisor) / length


@EQUATION_9.equal("outside [0, 1] the divisor is 0 at ‖x‖ = 1 − 1/alphaᵢ", tolerance=1e-12)
def _() -> Cases:
    for a in (-0.5, -0.25, 2.0, 4.0):
        r = 1 - 1 / a
        yield r / float(unitize_bounded(jnp.asarray([r]), a)[0])


THEOREM_33 = claim(
    "Theorem 3.3",
    r"Outputs of Equation 9 have $W \le 2/\min\alpha$, and $W \le E\|X\| + E\|Y\| + 2$ at "
    r"$\min\alpha = 0$",
    printed=r"Theorem 3.3, for $\alpha$ in $[0, 1]^d$",
    corrected=r"$W \le E\,\|X\|/m(\|X\|) + E\,\|Y\|/m(\|Y\|)$ with $m(r) = \min_j (\alpha_j r + "
    r"1 - \alpha_j)$",
    remark=Remark(
        "loose",
        r"If the smallest $\alpha$ is 0, the bound $E\max(\|X\|, 1) + E\max(\|Y\|, 1)$ is smaller "
        "than the bound of Theorem 3.3. In the proof, the minimum over $j$ must be of the whole "
        r"sum $\alpha_j\|x\| + (1 - \alpha_j)$, not only of $\alpha_j\|x\|$.",
    ),
    why=r"For $r \ge 1$ the smallest $\alpha$ gives the smallest divisor $m(r)$, and for "
    r"$r < 1$ the largest $\alpha$ does, so $\|g(x)\| \le r/m(r) \le "
    r"\min(1/\min\alpha, \max(r, 1))$.",
)


@THEOREM_33.at_most("three vectors alpha")
def _(key: Key[Array, ""]) -> Values:
    return _ratios(shift.unitized_upper_bound, VECTORS, *pairs(key))


@THEOREM_33.equal("attained by points at ±10⁹ e₁", tolerance=1e-7)
def _() -> Values:
    return _ratios(shift.unitized_upper_bound, VECTORS, *opposite(FAR, 0))


@THEOREM_33.equal("the +2 is needed: attained next to 0", tolerance=1e-7)
def _() -> Values:
    return _ratios(shift.unitized_upper_bound, VECTORS[:1], *opposite(1 / FAR, 1))


@THEOREM_33.at_most("steps of the proof", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    x = jnp.asarray(generator(key).standard_t(2, (200, 4)))
    r = np.linalg.norm(x, axis=1)
    for alpha in map(np.asarray, VECTORS):
        reach = r / (alpha * r[:, None] + 1 - alpha).min(1)
        yield np.linalg.norm(unitize_bounded(x, jnp.asarray(alpha)), axis=1) / reach - 1
        yield reach * alpha.min() - 1
        yield reach / np.maximum(r, 1) - 1


@THEOREM_33.at_most("W ≤ E r/m(r) of both", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return _ratios(shift.sharp_unitized_upper_bound, VECTORS, *pairs(key))


@THEOREM_33.equal("attained by opposite points", form="corrected")
def _() -> Cases:
    far, near = LENGTHS[LENGTHS >= 1], LENGTHS[LENGTHS < 1]
    for alpha in VECTORS:
        for lengths, feature in ((far, np.argmin(alpha)), (near, np.argmax(alpha))):
            pair = opposite(lengths, int(feature))
            yield _ratios(shift.sharp_unitized_upper_bound, (alpha,), *pair)
