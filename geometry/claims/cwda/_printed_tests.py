"""The second and the third test of weights as the paper prints them; neither supports its claim.

What does is in `pruning.weight_tests`: `std_equivalence` and `mean_equivalence`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import promote_to_float32
from pruning.weight_tests import TestResult, filter_stds


def std_t_test(filters: Float[Array, "filters dims"], *, margin: float) -> TestResult:
    """The paper's second test, read literally: Student's t of (σⱼ/mean − 1)² against margin².

    The hypothesis to reject is a mean of at least margin²; the p-value is the lower tail. The
    squares are skewed: at the boundary a test of nominal size 5% has size 11% with 64 filters and
    18% with 16.
    """
    n, stds = len(filters), filter_stds(filters)
    square = jnp.square(stds / stds.mean() - 1)
    t = (square.mean() - margin**2) / (square.std(ddof=1) / n**0.5)
    return TestResult(t, _student_survival(-t, n - 1))


def mean_t_test(x: Float[Array, "*shape"], *, margin: float) -> TestResult:
    """The paper's third test, read literally: t test of |μ| ≤ margin · S with S the *variance*.

    The hypothesis is that the mean is small; not rejecting it, which the paper counts as support,
    proves nothing: few weights pass always. With the variance the margin has the wrong unit: for
    weights of standard deviation 0.02 and margin 0.05 it is 0.001 standard deviations, so that at
    μ = 0 and n = 2000 the size at 5% is 9.1%, not 0.
    """
    h = promote_to_float32(x).ravel()
    std = h.std(ddof=1)
    t = h.size**0.5 * (jnp.abs(h.mean()) - margin * jnp.square(std)) / std
    return TestResult(t, _student_survival(t, h.size - 1))


def _student_survival(t: Float[Array, ""], freedom: int) -> Float[Array, ""]:
    """P(T > t) for Student's t; its square is a ratio that follows a Beta distribution."""
    square = jnp.square(t)
    tail = jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return jnp.where(t > 0, tail, 1 - tail)
