"""Section 3.4 up to Theorem 3.3: Equations 8 and 9, and the bounds they obey."""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Values, claims_of
from geometry.claims.unitization._pairs import (
    bounds_at,
    distances,
    distances_of_outputs,
    excess,
    opposite,
    pairs,
)
from jaxnorm import shift, unitize_bounded

claim = claims_of("Unitization")

SCALARS = (0.0, 0.1, 0.5, 0.9)
VECTORS = ((0.0, 1.0, 0.5, 0.2), (0.3, 0.9, 1.0, 0.4), (0.0, 0.0, 0.1, 0.0))
LENGTHS = np.geomspace(1e-3, 1e3, 14)
FAR = np.array([1e9])


def bounded(alpha: float | Sequence[float]) -> Callable[[Array], Array]:
    """Eq. 8 for a scalar alpha, Eq. 9 for one per feature."""
    return partial(unitize_bounded, alpha=jnp.asarray(alpha))


def equation_8(key: Key[Array, ""]) -> Cases:
    """Eq. 8 minus x/(alpha ‖x‖ + 1 − alpha), and at 0 minus 0, or minus a unit vector at 1."""
    x = generator(key).standard_t(2, (50, 4))
    for a in (*SCALARS, 1.0):
        g = bounded(a)
        yield np.asarray(g(jnp.asarray(x))) - x / (a * np.linalg.norm(x, axis=1)[:, None] + 1 - a)
        yield jnp.linalg.norm(g(jnp.zeros(4))) - float(a == 1)


def stretch(key: Key[Array, ""]) -> Cases:
    """W of Eq. 8's outputs over W/(1 − alpha), minus 1."""
    x, y = pairs(key)
    distance = distances(x, y)
    for a in (0.0, 0.3, 0.9):
        yield excess(distances_of_outputs(x, y, bounded(a)), distance / (1 - a))


def stretch_attained(key: Key[Array, ""]) -> Cases:
    """The same next to 0."""
    x, y = opposite(np.array([1e-7]), 2)
    for a in (0.0, 0.3, 0.9):
        yield distances_of_outputs(x, y, bounded(a)) / (distances(x, y) / (1 - a)) - 1


def increases(key: Key[Array, ""]) -> Values:
    """W of opposite points after Eq. 8 at alpha 0.9 over W before, minus 1."""
    x, y = opposite(LENGTHS, 0)
    return distances_of_outputs(x, y, bounded(0.9)) / distances(x, y) - 1


EQUATION_8 = claim(
    "Equation 8",
    r"$g(x) = x/(\alpha\|x\| + 1 - \alpha)$, a unit vector at 0 for $\alpha = 1$",
    Computed("as printed", equation_8, tolerance=1e-12),
    Computed("W(g(X), g(Y)) ≤ W/(1 − alpha)", stretch, "inequality"),
    Computed("attained next to 0", stretch_attained, tolerance=2e-6),
    Computed.overread("it does not increase W", increases, "inequality", tolerance=0.01),
    remark=Remark(
        "over-reading",
        "A definition; it bounds $W$, as the abstract says, and need not reduce it: $W$ may grow "
        r"up to $1/(1 - \alpha)$ times.",
    ),
    why=r"$1/(1 - \alpha)$ is its Lipschitz constant, that of the Jacobian at 0.",
)


def _ratios(bound: Callable, alphas: Sequence, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """W of the outputs of Eqs. 8 and 9 over `bound` of alpha and the inputs, minus 1."""
    return [
        excess(
            distances_of_outputs(x, y, bounded(alpha)),
            bounds_at(bound, jnp.asarray(alpha), x, y),
        )
        for alpha in alphas
    ]


def theorem_32(key: Key[Array, ""]) -> Values:
    """W over the printed bound, minus 1."""
    return _ratios(shift.unitized_upper_bound, SCALARS, *pairs(key))


def theorem_32_attained(key: Key[Array, ""]) -> Values:
    """The same of points at ±10⁹ e₃."""
    return _ratios(shift.unitized_upper_bound, SCALARS, *opposite(FAR, 2))


def theorem_32_sharp(key: Key[Array, ""]) -> Values:
    """W over the corrected bound, minus 1."""
    return _ratios(shift.sharp_unitized_upper_bound, SCALARS, *pairs(key))


def theorem_32_sharp_attained(key: Key[Array, ""]) -> Values:
    """The same of opposite points, at any distance."""
    return _ratios(shift.sharp_unitized_upper_bound, SCALARS, *opposite(LENGTHS, 2))


def different_alphas(key: Key[Array, ""]) -> Values:
    """W of outputs of alpha 0.3 and 0.8 over 1/0.3 + 1/0.8, minus 1."""
    return _different_alphas(*pairs(key))


def different_alphas_attained(key: Key[Array, ""]) -> Values:
    """The same of points at ±10⁹ e₃."""
    return _different_alphas(*opposite(FAR, 2))


def _different_alphas(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return distances_of_outputs(x, y, bounded(0.3), bounded(0.8)) / (1 / 0.3 + 1 / 0.8) - 1


THEOREM_32 = claim(
    "Theorem 3.2",
    r"Eq. 8: $W \le 2/\alpha$, and $E\|X\| + E\|Y\|$ at $\alpha = 0$",
    Computed("four alphas", theorem_32, "inequality"),
    Computed("attained by points at ±10⁹ e₃", theorem_32_attained, tolerance=1e-7),
    Computed.corrected("W ≤ E h(‖X‖) + E h(‖Y‖)", theorem_32_sharp, "inequality"),
    Computed.corrected("attained by all opposite points", theorem_32_sharp_attained),
    Computed.corrected("different alphas: 1/alpha + 1/alpha′", different_alphas, "inequality"),
    Computed.corrected("attained too", different_alphas_attained, tolerance=1e-7),
    printed=r"Theorem 3.2, with one $\alpha$ of $[0, 1]$ for both distributions",
    corrected=r"$E\,h(\|X\|) + E\,h(\|Y\|)$, "
    r"$h(r) = r/(\alpha r + 1 - \alpha)$, for every $\alpha$",
    remark=Remark(
        "hypothesis",
        r"Both iterations have the same $\alpha$, which training changes: with two the bound is "
        r"$1/\alpha + 1/\alpha'$. It is of the transformation, and not of what $\gamma$ and "
        r"$\beta$ make of it.",
    ),
    why=r"The norm of $g(x)$ is $h(\|x\|)$, which rises to $1/\alpha$. $E\,h$ is below "
    r"both cases of the theorem and continuous in $\alpha$, where $2/\alpha$ jumps at 0.",
)


def equation_9(key: Key[Array, ""]) -> Cases:
    """Eq. 9 minus ((‖x‖ − 1) diag(alpha) + E)⁻¹ x, and at 0 minus 0."""
    x = generator(key).standard_t(2, (50, 4))
    for alpha in VECTORS:
        matrices = (np.linalg.norm(x, axis=1) - 1)[:, None, None] * np.diag(alpha) + np.eye(4)
        printed = np.linalg.solve(matrices, x[..., None])[..., 0]
        g = bounded(alpha)
        yield [np.asarray(g(jnp.asarray(x))) - printed, g(jnp.zeros(4))]


def divisors(key: Key[Array, ""]) -> Values:
    """min(1, ‖x‖) minus the divisor xᵢ/gᵢ(x), for alpha in [0, 1]."""
    rng = generator(key)
    alpha = jnp.asarray([0.0, 1.0, *rng.uniform(0, 1, 30)])
    x = 10 ** rng.uniform(-3, 3, (300, 1)) * rng.normal(size=(300, 32))
    divisor = x / np.asarray(unitize_bounded(jnp.asarray(x), alpha))
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return (np.minimum(1, length) - divisor) / length


def poles(key: Key[Array, ""]) -> Cases:
    """The divisor xᵢ/gᵢ(x) at ‖x‖ = 1 − 1/alpha, for alpha outside [0, 1]."""
    for a in (-0.5, -0.25, 2.0, 4.0):
        r = 1 - 1 / a
        yield r / float(unitize_bounded(jnp.asarray([r]), a)[0])


EQUATION_9 = claim(
    "Equation 9",
    r"$g_i(x) = x_i/(1 + \alpha_i(\|x\| - 1))$, 0 at 0",
    Computed("as printed, by the inverse of the matrix", equation_9, tolerance=1e-12),
    Computed("in [0, 1] the divisor is at least min(1, ‖x‖)", divisors, "inequality"),
    Computed("outside it is 0 at ‖x‖ = 1 − 1/alphaᵢ", poles, tolerance=1e-12),
    remark=Remark(
        "hypothesis",
        r"It needs $\alpha$ in $[0, 1]$: beyond, it has a pole, and the sign of a feature changes "
        r"there. At 0 it is 0 where Eqs. 6 and 8 are a unit vector for $\alpha = 1$.",
    ),
)


def theorem_33(key: Key[Array, ""]) -> Values:
    """W over the printed bound, minus 1."""
    return _ratios(shift.unitized_upper_bound, VECTORS, *pairs(key))


def theorem_33_attained(key: Key[Array, ""]) -> Values:
    """The same of points at ±10⁹ e₁, where each of the alphas is least."""
    return _ratios(shift.unitized_upper_bound, VECTORS, *opposite(FAR, 0))


def two_is_needed(key: Key[Array, ""]) -> Values:
    """The same of points at ±10⁻⁹ e₂ for alpha (0, 1, 1/2, 1/5), where E‖X‖ + E‖Y‖ = 2·10⁻⁹."""
    return _ratios(shift.unitized_upper_bound, VECTORS[:1], *opposite(1 / FAR, 1))


def theorem_33_sharp(key: Key[Array, ""]) -> Values:
    """W over the corrected bound, minus 1."""
    return _ratios(shift.sharp_unitized_upper_bound, VECTORS, *pairs(key))


def theorem_33_sharp_attained(key: Key[Array, ""]) -> Cases:
    """The same of opposite points along the least alpha beyond norm 1, the largest below."""
    far, near = LENGTHS[LENGTHS >= 1], LENGTHS[LENGTHS < 1]
    for alpha in VECTORS:
        for lengths, feature in ((far, np.argmin(alpha)), (near, np.argmax(alpha))):
            pair = opposite(lengths, int(feature))
            yield _ratios(shift.sharp_unitized_upper_bound, (alpha,), *pair)


def steps_of_the_proof(key: Key[Array, ""]) -> Cases:
    """‖g(x)‖ over r/m(r), and r/m(r) over 1/min alpha and over max(r, 1), minus 1."""
    x = jnp.asarray(generator(key).standard_t(2, (200, 4)))
    r = np.linalg.norm(x, axis=1)
    for alpha in map(np.asarray, VECTORS):
        reach = r / (alpha * r[:, None] + 1 - alpha).min(1)
        yield np.linalg.norm(unitize_bounded(x, jnp.asarray(alpha)), axis=1) / reach - 1
        yield reach * alpha.min() - 1
        yield reach / np.maximum(r, 1) - 1


THEOREM_33 = claim(
    "Theorem 3.3",
    r"Eq. 9: $W \le 2/\min\alpha$, and $E\|X\| + E\|Y\| + 2$ at "
    r"$\min\alpha = 0$",
    Computed("three vectors alpha", theorem_33, "inequality"),
    Computed("attained by points at ±10⁹ e₁", theorem_33_attained, tolerance=1e-7),
    Computed("the +2 is needed: attained next to 0", two_is_needed, tolerance=1e-7),
    Computed("steps of the proof", steps_of_the_proof, "inequality", tolerance=1e-12),
    Computed.corrected("W ≤ E r/m(r) of both", theorem_33_sharp, "inequality"),
    Computed.corrected("attained by opposite points", theorem_33_sharp_attained),
    printed=r"Theorem 3.3, for $\alpha$ in $[0, 1]^d$",
    corrected=r"$E\,r/m(r)$ of $\|X\|$ and of $\|Y\|$, "
    r"$m(r) = \min_j (\alpha_j r + 1 - \alpha_j)$",
    remark=Remark(
        "loose",
        r"$E\max(\|X\|, 1) + E\max(\|Y\|, 1)$ is enough at $\min\alpha = 0$. "
        r"From its second line on the proof has $\min_j \alpha_j\|x\| + (1 - \alpha_j)$, which is "
        "to be read as the minimum of the sum.",
    ),
    why=r"The least divisor $m(r)$ is that of the least $\alpha$ for $r \ge 1$ and of the largest "
    r"below, so that $\|g(x)\| \le r/m(r) \le \min(1/\min\alpha, \max(r, 1))$.",
)
