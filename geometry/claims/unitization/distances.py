"""Section 3 and Appendix A.1: the local objective, and two forms of the earth mover distance."""

import jax.numpy as jnp
import scipy.stats
from jaxtyping import Array, Key

from geometry.claims._draws import generator
from geometry.claims._types import Cases, Computed, Values, claims_of
from geometry.claims.unitization._pairs import bounds_of, distances, dual, excess, pairs
from jaxnorm import shift

claim = claims_of("Unitization")

EQUATION_1 = claim(
    "Equation 1",
    "Local objective of the layers above l: E h(x, y; Θ) over the outputs of l",
    reason="a definition, with nothing to compute",
)


def exact_distances(key: Key[Array, ""]) -> Values:
    """`emd` over the linear programme and over the dual, minus 1; minus `emd_1d` on a line."""
    rng = generator(key)
    x, y = rng.normal(size=(2, 6, 2))
    distance = shift.emd(jnp.asarray(x), jnp.asarray(y))
    line = jnp.asarray(x[:, :1]), jnp.asarray(y[:, :1])
    difference = shift.emd(*line) - float(shift.emd_1d(*line)[0])
    primal = float(scipy.stats.wasserstein_distance_nd(x, y))
    return [distance / primal - 1, distance / dual(x, y) - 1, difference]


def simple_bounds(key: Key[Array, ""]) -> Values:
    """‖μ − μ′‖ minus W, and W minus the mean displacement of pairs, over the larger."""
    x, y = pairs()
    distance = distances(x, y)
    lower = bounds_of(lambda x, y: shift.mean_lower_bound(x.mean(0), y.mean(0)), x, y)
    upper = bounds_of(shift.paired_upper_bound, x, y)
    return [excess(lower, distance), excess(distance, upper)]


EQUATIONS_2_AND_3 = claim(
    "Equations 2 and 3",
    "W = inf E‖X − Y‖ over couplings = sup E f(X) − E f(Y) over 1-Lipschitz f",
    Computed("assignment, linear programme, its dual, one dimension", exact_distances),
    Computed("‖μ − μ′‖ ≤ W ≤ mean displacement", simple_bounds, "inequality"),
    corrected="for finite first moments",
)


def facts(key: Key[Array, ""]) -> Cases:
    """The dual with the other sign, and with f(0) = 0, over the dual, minus 1."""
    rng = generator(key)
    for _ in range(5):
        x, y = rng.normal(size=(2, 6, 2))
        value = dual(x, y)
        yield dual(y, x) / value - 1
        yield dual(x, y, pinned=True) / value - 1


FACTS_1_AND_2 = claim(
    "Facts 1 and 2",
    "The supremum is the same with an absolute value, and with f(0) = 0",
    Computed("dual with the other sign, and pinned", facts, tolerance=1e-8),
)
