"""Section 3.2, on lower bounds of the distance from moments, and an unbounded distance."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from claims.draws import generator
from claims.unitization._pairs import bounds_of, distances, excess, pairs
from geometry.claims import Cases, Claim, Remark, Values
from jaxnorm import batch_norm, shift

claim = partial(Claim, "Unitization")

# the distance of a point from the corner (C, …, C) of the cube, divided by the corner's norm
STEP = 1e-6


def theorem_2_attained(key: Key[Array, ""]) -> Cases:
    """Yield Theorem 2's lower bound / distance − 1 for the point (C, …, C) and a near point."""
    for p, radius in product((2, 3, 4, 5), (0.5, 5.0)):
        x = jnp.full((1, 4), radius)
        lower = shift.moment_lower_bound(x, (1 - STEP) * x, radius=radius, p=p)
        yield float(lower) / (STEP * radius * 4**0.5) - 1


THEOREM_2 = claim(
    "Theorem 2, f of p and C",
    r"$W \ge |E\,f(X) - E\,f(Y)|$ with "
    r"$f = \sum \mathrm{clip}(x_i, \pm C)^p/(p\,C^{p-1}\sqrt{d})$",
    remark=Remark(
        "over-reading",
        "Theorem 2 does not show that high moments have a large effect on $W$. For outputs within "
        r"$\pm C$, the lower bound of Theorem 2 is at most $2\sqrt{d}\,C/p$, which tends to 0 as "
        "the power $p$ grows. In the supremum of Theorem 2, the mean over $x$ must be of $f(x)$, "
        "not of $f(y)$.",
    ),
    why=r"Each $|\mathrm{clip}(v_i)^p - \mathrm{clip}(w_i)^p|$ is at most $p\,C^{p-1}\,|v_i - "
    r"w_i|$, and the sum of all $|v_i - w_i|$ is at most $\sqrt{d}\,\|v - w\|$. For short steps "
    "from a corner of the cube $[-C, C]^d$ along the diagonal, the two bounds become equalities.",
)


@THEOREM_2.equal("f is the printed sum", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    x = 2 * generator(key).normal(size=(100, 3))
    for p, radius in product((2, 3, 4, 5), (0.5, 2.0)):
        within = np.where(np.abs(x) <= radius, x**p, 0)
        below, above = (x < -radius) * (-radius) ** p, (x > radius) * radius**p
        printed = (within + below + above).sum(1) / (p * radius ** (p - 1) * 3**0.5)
        yield np.asarray(shift.clipped_power(jnp.asarray(x), radius=radius, p=p)) - printed


@THEOREM_2.at_most("f is 1-Lipschitz", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    v, w = 2 * rng.normal(size=(2, 4000, 3))
    v[:500], w[:500] = 1.0, 1 - 10 ** rng.uniform(-6, -1, (500, 1))
    lengths = np.linalg.norm(v - w, axis=1)
    for p in (2, 3, 4, 5):
        f = jax.jit(partial(shift.clipped_power, radius=1.0, p=p))
        yield np.abs(f(jnp.asarray(v)) - f(jnp.asarray(w))) / lengths - 1


@THEOREM_2.at_most("p = 2 to 5, heavy-tailed pairs and the corner")
def _(key: Key[Array, ""]) -> Cases:
    x, y = pairs(key)
    distance = distances(x, y)
    for p, radius in ((2, 1.0), (3, 0.5), (5, 5.0)):
        lower = bounds_of(partial(shift.moment_lower_bound, radius=radius, p=p), x, y)
        yield excess(lower, distance)
    yield from theorem_2_attained(key)


THEOREM_2.equal("attained at the corner (C, …, C), p = 2 to 5", tolerance=3 * STEP)(
    theorem_2_attained
)


@THEOREM_2.equal("at most √d C/p for even p, twice that for odd p", tolerance=1e-12)
def _() -> Cases:
    for p, radius in product((2, 3, 4, 5, 10), (0.5, 5.0)):
        x = jnp.full((1, 4), radius)
        peak = 4**0.5 * radius / p
        yield float(shift.moment_lower_bound(x, 0 * x, radius=radius, p=p)) / peak - 1
        if p % 2:
            yield float(shift.moment_lower_bound(x, -x, radius=radius, p=p)) / (2 * peak) - 1


@THEOREM_2.at_most("a higher order gives a larger bound", form="overread")
def _(key: Key[Array, ""]) -> Values:
    x, y = generator(key).uniform(-1, 1, (2, 40, 9, 3))
    second, fourth = (
        bounds_of(partial(shift.moment_lower_bound, radius=1.0, p=p), x, 0.3 * y) for p in (2, 4)
    )
    return second - fourth


def _equation_5(x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    noise = x.mean(1), x.var(1) - 1, y.mean(1), y.var(1) - 1

    def bound(e: Array, v: Array, f: Array, w: Array, c: Array) -> Array:
        return shift.normalized_lower_bound(e, v, f, w, radius=c)

    return bounds_of(bound, *noise, radius)


def equation_5_attained(key: Key[Array, ""]) -> Values:
    """Equation 5's lower bound / distance − 1, for the point (C₀, …, C₀) and a near point."""
    x = np.full((1, 1, 4), 3.0)
    return _equation_5(x, (1 - STEP) * x, np.array([3.0])) / (STEP * 6.0) - 1


EQUATION_5 = claim(
    "Equation 5",
    r"$W \ge |\sum(e^2 + v - e'^2 - v')|/(2C_0\sqrt{d})$ for supports in $[-C_0, "
    "C_0]^d$",
    printed="Section 3.2, Equation 5, for supports that are subsets of $[-C_0, C_0]^d$",
    remark=Remark(
        "hypothesis",
        "For outputs outside $[-C_0, C_0]^d$, the bound of Equation 5 is false. Batch norm with "
        r"batches of $m$ samples can give outputs up to $\sqrt{m - 1}$.",
    ),
    why=r"Equation 5 is Theorem 2 at $p = 2$ and $C = C_0$, with $E\,x_i^2 = e_i^2 + 1 + v_i$.",
)


@EQUATION_5.equal("Theorem 2 at p = 2 with C₀ the largest entry")
def _(key: Key[Array, ""]) -> Values:
    x, y = generator(key).normal(size=(2, 40, 9, 3))
    radius = np.abs(np.concatenate([x, y], 1)).max((1, 2))
    printed = _equation_5(x, y, radius)
    f, g = (np.square(z).sum(2).mean(1) / (2 * radius * 3**0.5) for z in (x, y))
    return printed - np.abs(f - g)


@EQUATION_5.at_most("at most W, with C₀ the largest entry")
def _(key: Key[Array, ""]) -> Values:
    x, y = pairs(key)
    radius = np.abs(np.concatenate([x, y], 1)).max((1, 2))
    return [excess(_equation_5(x, y, radius), distances(x, y)), equation_5_attained(key)]


EQUATION_5.equal("attained at the corner", tolerance=3 * STEP)(equation_5_attained)


@EQUATION_5.equal("C₀ = √(m − 1) is attained by a batch of m")
def _() -> Cases:
    for m in (2, 128):
        y, _ = batch_norm(jnp.zeros((m, 1)).at[0].set(5.0), eps=0.0)
        yield float(jnp.abs(y).max()) / (m - 1) ** 0.5 - 1


@EQUATION_5.at_most("with C₀ = 1 below the support", form="overread")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, y = rng.standard_t(2.2, (200, 30, 1)), 0.1 * rng.normal(size=(200, 30, 1))
    return excess(_equation_5(x, y, np.ones(200)), distances(x, y))


def _uniforms(d: int, c: float, points: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """The midpoints of all cells in two regular grids, one on [c/2, c]ᵈ and one on [0, c/4]ᵈ."""
    t = (np.arange(points) + 0.5) / points
    grid = np.stack(np.meshgrid(*[t] * d), -1).reshape(-1, d)
    return c / 2 * (1 + grid), c / 4 * grid


UNBOUNDED_EXAMPLE = claim(
    "Unbounded example",
    "The distance $W$ of uniform distributions on $[C'/2, C']^d$ and $[0, C'/4]^d$ exceeds "
    r"$(2^{-p} - 4^{-p})\sqrt{d}\,C'/p$",
    printed="Appendix A.2, after Theorem 2",
    corrected=r"$0.625\,\sqrt{d}\,C' \le W \le 0.6292\,\sqrt{d}\,C'$",
    remark=Remark(
        "loose",
        "For the two uniform distributions after Theorem 2, the printed lower bound is less than a "
        r"sixth of $W$. The identity $W(cX, cY) = c\,W(X, Y)$ is a shorter proof that $W$ has no "
        "upper bound.",
    ),
    why=r"The means of the two distributions are $5\sqrt{d}\,C'/8$ apart, and no coupling has a "
    "smaller mean displacement. The coupling $X = C'/2 + 2Y$ has the root mean square "
    r"displacement $\sqrt{19d/48}\,C'$.",
)


@UNBOUNDED_EXAMPLE.at_most("p = 2 to 7, d = 1 to 3: below Theorem 2, below W")
def _() -> Cases:
    c = 50.0
    for d in (1, 2, 3):
        x, y = _uniforms(d, c)
        distance = distances(x[None], y[None])
        for p in range(2, 8):
            printed = (2.0**-p - 4.0**-p) * d**0.5 * c / p
            lower = float(shift.moment_lower_bound(jnp.asarray(x), jnp.asarray(y), radius=c, p=p))
            yield [(printed - lower) / distance, lower / distance - 1]


@UNBOUNDED_EXAMPLE.equal("Theorem 2 with exact moments, d = 1", tolerance=1e-6)
def _() -> Cases:
    x, y = map(jnp.asarray, _uniforms(1, 1.0, 4000))
    for p in range(2, 8):
        moments = 2 * (1 - 2.0 ** -(p + 1)) / (p + 1), 4.0**-p / (p + 1)
        lower = shift.moment_lower_bound(x, y, radius=1.0, p=p)
        yield float(lower) / ((moments[0] - moments[1]) / p) - 1


@UNBOUNDED_EXAMPLE.equal("W = 5C′/8 for d = 1", 0.625, form="corrected")
def _() -> Cases:
    for c in (1.0, 50.0):
        x, y = map(jnp.asarray, _uniforms(1, c, 4000))
        yield float(shift.emd_1d(x, y)[0]) / c


@UNBOUNDED_EXAMPLE.at_most(
    "5/8 ≤ W/(√d C′) ≤ √(19/48), 0.7 % apart, for d = 2 and 3", form="corrected"
)
def _() -> Cases:
    for d, c in product((2, 3), (1.0, 50.0)):
        x, y = _uniforms(d, c)
        scaled = distances(x[None], y[None]) / (d**0.5 * c)
        yield [5 / 8 - scaled, scaled - (19 / 48) ** 0.5]
