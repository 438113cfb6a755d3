"""Sections 3.1 and 3.2: what moments say of the distance, from above and from below."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Remark, Values, claims_of
from geometry.claims.unitization._pairs import bounds_of, distances, excess, pairs
from jaxnorm import shift

claim = claims_of("Unitization")


def distance_bounds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exact distances of discrete pairs, and both forms of Theorem 1's bound."""
    x, y = pairs()
    statistics = x.mean(1), x.var(1), y.mean(1), y.var(1)
    printed = bounds_of(shift.moment_upper_bound, *statistics)
    return distances(x, y), printed, bounds_of(shift.sharp_moment_upper_bound, *statistics)


def theorem_1(key: Key[Array, ""]) -> Values:
    """W over S + S′ + D + 2, minus 1."""
    distance, printed, _ = distance_bounds()
    return excess(distance, printed)


def moment_bounds_sharp(key: Key[Array, ""]) -> Values:
    """W over √(S + S′ + D²), minus 1; and that over S + S′ + D + 1/4, minus 1."""
    distance, printed, sharp = distance_bounds()
    return [excess(distance, sharp), sharp / (printed - 2 + 0.25) - 1]


def theorem_1_attained(key: Key[Array, ""]) -> Values:
    """W over the sharp bound, minus 1, of ±a e₁ and D e₃ ± b e₂; and of ±½ and 0 over ½."""
    a, b, d = 0.3, 0.4, 2.0
    x = np.array([[[a, 0, 0], [-a, 0, 0]]])
    y = np.array([[[0, b, d], [0, -b, d]]])
    halves = np.array([[[0.5], [-0.5]]])
    return [
        float(distances(x, y)[0]) / math.sqrt(a**2 + b**2 + d**2) - 1,
        float(distances(halves, 0 * halves)[0]) / 0.5 - 1,
    ]


def theorem_1_units(key: Key[Array, ""]) -> Values:
    """The bound of 100 x and 100 y over 100 times that of x and y, minus 1."""
    rng = generator(key)
    mean, var = rng.normal(size=(2, 3)), rng.uniform(1, 2, (2, 3))

    def bound(c: float) -> float:
        statistics = c * mean[0], c**2 * var[0], c * mean[1], c**2 * var[1]
        return float(shift.moment_upper_bound(*map(jnp.asarray, statistics)))

    return bound(100) / (100 * bound(1)) - 1


THEOREM_1 = claim(
    "Theorem 1",
    "W ≤ S + S′ + D + 2",
    Computed("heavy-tailed and opposite points", theorem_1, "inequality"),
    Computed.corrected("W ≤ √(S + S′ + D²) ≤ S + S′ + D + 1/4", moment_bounds_sharp, "inequality"),
    Computed.corrected("both are attained", theorem_1_attained),
    Computed.rejected("the bound is in the unit of W", theorem_1_units, tolerance=0.1),
    printed="S + S′ + D + 2, of no unit",
    corrected="√(S + S′ + D²), attained",
)


def equation_4(key: Key[Array, ""]) -> Values:
    """Eq. 4 over Theorem 1 of outputs with variances 1 + v, minus 1."""
    rng = generator(key)
    e, f = rng.normal(size=(2, 50, 6))
    v, w = rng.uniform(-0.5, 0.5, (2, 50, 6))
    printed = bounds_of(shift.normalized_upper_bound, e, v, f, w)
    return printed / bounds_of(shift.moment_upper_bound, e, 1 + v, f, 1 + w) - 1


def worst_normalized(key: Key[Array, ""]) -> Cases:
    """W of ±(1, …, 1) and ±(1, −1, 1, …) over √(2d), minus 1: attained with variances 1."""
    for d in (2, 8, 64):
        one, sign = np.ones(d), (-1.0) ** np.arange(d)
        x, y = np.stack([one, -one]), np.stack([sign, -sign])
        yield float(distances(x[None], y[None])[0]) / math.sqrt(2 * d) - 1


EQUATION_4 = claim(
    "Equation 4",
    "W ≤ Σv + Σv′ + 2d + ‖e − e′‖ + 2 of outputs of a batch norm",
    Computed("equals Theorem 1", equation_4, tolerance=1e-12),
    Computed.corrected("√(2d) is attained without noise", worst_normalized),
    corrected="without noise √(2d) at most, the same in units of √d for every d",
    remark=Remark("loose", "holds, loose"),
)


def unbounded_example(key: Key[Array, ""]) -> Cases:
    """Theorem 2's bound minus W = 5C′/8 of the example in one dimension, over W, k = 2..7."""
    for c in (1.0, 50.0):
        distance = _distance_of_uniforms(c)
        yield [(2.0**-k - 4.0**-k) * c / k / distance - 1 for k in range(2, 8)]


def distance_of_the_example(key: Key[Array, ""]) -> Values:
    """W at C′ = 1."""
    return _distance_of_uniforms(1.0)


def _distance_of_uniforms(c: float) -> float:
    """W of the uniform distributions on [c/2, c] and [0, c/4]."""
    t = (np.arange(4000) + 0.5) / 4000
    x, y = c / 2 * (1 + t), c / 4 * t
    return float(shift.emd_1d(jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])[0])


UNBOUNDED_EXAMPLE = claim(
    "Unbounded example",
    "W of uniform distributions on [C′/2, C′]ᵈ and [0, C′/4]ᵈ exceeds (2⁻ᵏ − 4⁻ᵏ)√d C′/k",
    Computed("k = 2 to 7, d = 1", unbounded_example, "inequality"),
    Computed.corrected("W = 5C′/8 for d = 1", distance_of_the_example, predicted=0.625),
    corrected="0.625 to 0.6292 √d C′: the unboundedness is W(cx, cy) = cW(x, y)",
    remark=Remark("loose", "holds, loose"),
)


def lipschitz_constant(key: Key[Array, ""]) -> Cases:
    """|f(v) − f(w)|/‖v − w‖ of f of Theorem 2, minus 1, along the corner too; p = 2..5."""
    rng = generator(key)
    v, w = 2 * rng.normal(size=(2, 4000, 3))
    v[:500], w[:500] = 1.0, 1 - 10 ** rng.uniform(-6, -1, (500, 1))
    lengths = np.linalg.norm(v - w, axis=1)
    for p in (2, 3, 4, 5):
        f = jax.jit(partial(shift.clipped_power, radius=1.0, p=p))
        yield np.abs(f(jnp.asarray(v)) - f(jnp.asarray(w))) / lengths - 1


def theorem_2(key: Key[Array, ""]) -> Cases:
    """The lower bound over W, minus 1."""
    x, y = pairs()
    distance = distances(x, y)
    for p, radius in ((2, 1.0), (3, 0.5), (5, 5.0)):
        lower = bounds_of(partial(shift.moment_lower_bound, radius=radius, p=p), x, y)
        yield excess(lower, distance)


THEOREM_2 = claim(
    "Theorem 2, f of p and C",
    "W ≥ |E f(X) − E f(Y)| with f = Σ clip(xᵢ, ±C)ᵖ/(p C^(p−1) √d)",
    Computed("f is 1-Lipschitz", lipschitz_constant, "inequality", tolerance=1e-6),
    Computed("p = 2, 3 and 5", theorem_2, "inequality"),
)


def equation_5(key: Key[Array, ""]) -> Values:
    """Eq. 5 minus Theorem 2 at p = 2, with C the largest entry."""

    def difference(a: np.ndarray, b: np.ndarray) -> float:
        radius = float(max(np.abs(a).max(), np.abs(b).max()))
        statistics = (a.mean(0), a.var(0) - 1, b.mean(0), b.var(0) - 1)
        printed = shift.normalized_lower_bound(*map(jnp.asarray, statistics), radius=radius)
        f = [np.mean(np.sum(x**2, 1)) / (2 * radius * 3**0.5) for x in (a, b)]
        return float(printed) - abs(f[0] - f[1])

    x, y = generator(key).normal(size=(2, 40, 9, 3))
    return [difference(a, b) for a, b in zip(x, y, strict=True)]


def equation_5_outside(key: Key[Array, ""]) -> Values:
    """Eq. 5 with C = 1 minus W, of one-dimensional samples that leave [−1, 1]."""
    rng = generator(key)
    x, y = rng.standard_t(2.2, (200, 30)), 0.1 * rng.normal(size=(200, 30))
    distance = np.abs(np.sort(x) - np.sort(y)).mean(1)
    printed = np.abs(np.mean(x**2, 1) - np.mean(y**2, 1)) / 2
    return printed - distance


EQUATION_5 = claim(
    "Equation 5",
    "W ≥ |Σ(e² + v − e′² − v′)|/(2C₀√d)",
    Computed("Theorem 2 at p = 2 with C₀ the largest entry", equation_5),
    Computed.rejected("with C₀ = 1 below the support", equation_5_outside, "inequality"),
    printed="no condition on C₀",
    corrected="supports must lie in [−C₀, C₀]ᵈ",
)
