"""Section 3 and Appendix A.1, on the local objective and two forms of the earth mover distance."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Key

from claims.draws import generator
from claims.unitization._pairs import bounds_of, distances, dual, excess, pairs
from geometry.claims import Cases, Claim, Remark, Values
from jaxnorm import shift

claim = partial(Claim, "Unitization")


EQUATION_1 = claim(
    "Equation 1",
    r"The layers above layer $l$ have the local objective $E\,h(x, y;\,\Theta)$, a mean over the "
    "outputs of layer $l$",
    reason="Equation 1 is a definition, and the paper computes nothing from it.",
)


def _simple_bounds(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lower = bounds_of(lambda x, y: shift.mean_lower_bound(x.mean(0), y.mean(0)), x, y)
    return lower, distances(x, y), bounds_of(shift.paired_upper_bound, x, y)


EQUATIONS_2_AND_3 = claim(
    "Equations 2 and 3",
    r"The distance $W$ is the infimum of $E\|X - Y\|$ over couplings of $X$ and $Y$, and equals "
    r"the supremum of $E\,f(X) - E\,f(Y)$ over 1-Lipschitz functions $f$",
    printed="Section 3: “The EM distance requires weak assumptions”; before Equation 3: “by the "
    "Kantorovich-Rubinstein duality [11], the EM distance Eq.(2) can be rewritten as”",
    corrected="For Equations 2 and 3, the distributions of $X$ and $Y$ must have finite first "
    "moments. Every finite set of samples has finite first moments",
    fault="false in a case",
    remark=Remark(
        "unit",
        "The distance $W$ has the unit of the outputs, so a constant can bound $W$ only if "
        "the scale of the outputs is fixed.",
    ),
    why="For $P(X > r) = 1/r$ and $Y = X + 1$, Equation 2 gives $W = 1$, but for $f(x) = x$, the "
    "means of $f(X)$ and $f(Y)$ are infinite, so Equation 3 has no value.",
)


def _tail(r: float) -> float:
    """The probability P(X > r) for a distribution with an infinite mean."""
    return float(scipy.stats.pareto(1).sf(r))


@EQUATIONS_2_AND_3.at_most(
    "E min(X, R) is below 10, where P(X > r) = 1/r, R up to 10⁸", 10.0, form="rejected"
)
def _() -> Values:
    logarithms = np.log([1e2, 1e4, 1e6, 1e8])
    return [
        1 + scipy.integrate.quad(lambda t: _tail(np.exp(t)) * np.exp(t), 0, end)[0]
        for end in logarithms
    ]


@EQUATIONS_2_AND_3.equal("W of X and X + 1 by their tails", 1.0, form="corrected")
def _() -> Values:
    parts = ((0, 1), (1, 2), (2, np.inf))
    return sum(
        scipy.integrate.quad(lambda r: _tail(r - 1) - _tail(r), start, end)[0]
        for start, end in parts
    )


@EQUATIONS_2_AND_3.equal(
    "W by assignment, by a linear programme, by its dual, and in one dimension agree",
    form="corrected",
)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, y = rng.normal(size=(2, 6, 2))
    distance = shift.emd(jnp.asarray(x), jnp.asarray(y))
    line = jnp.asarray(x[:, :1]), jnp.asarray(y[:, :1])
    difference = shift.emd(*line) - float(shift.emd_1d(*line)[0])
    primal = float(scipy.stats.wasserstein_distance_nd(x, y))
    return [distance / primal - 1, distance / dual(x, y) - 1, difference]


@EQUATIONS_2_AND_3.at_most("‖μ − μ′‖ ≤ W ≤ mean displacement")
def _(key: Key[Array, ""]) -> Values:
    x, y = pairs(key)
    lower, distance, upper = _simple_bounds(x, y)
    return [excess(lower, distance), excess(distance, upper)]


@EQUATIONS_2_AND_3.equal("both are attained by a shift")
def _(key: Key[Array, ""]) -> Values:
    x, displacement = generator(key).normal(size=(2, 50, 12, 4))
    lower, distance, upper = _simple_bounds(x, x + displacement[:, :1])
    return [lower / distance - 1, upper / distance - 1]


FACTS_1_AND_2 = claim(
    "Facts 1 and 2",
    "The supremum in Equation 3 does not change if the absolute value of the difference is "
    "taken, or if $f(0) = 0$ is required",
    why="The functions $-f$ and $f - f(0)$ have the Lipschitz constant of $f$.",
)


@FACTS_1_AND_2.equal("dual with the other sign, and pinned", tolerance=1e-8)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for _ in range(5):
        x, y = rng.normal(size=(2, 6, 2))
        value = dual(x, y)
        yield dual(y, x) / value - 1
        yield dual(x, y, pinned=True) / value - 1
