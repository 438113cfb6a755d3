"""Tests of the assumption that filters are independent draws from N(0, c² I), beside `_ks`.

Of each of the paper's tests of spread and mean there is the literal form, whose size its docstring
states, and the form that supports what is claimed: there the hypothesis to reject is the contrary,
and a small p-value is the support. Statistics and p-values are in at least float32.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import auto_sharded, promote_to_float32

Result = tuple[Float[Array, ""], Float[Array, ""]]


def filter_stds(filters: Float[Array, "n dims"]) -> Float[Array, " n"]:
    """Standard deviation σⱼ of the weights of each filter, with dims − 1 in the denominator.

    For Gaussian filters their relative spread is about 1/√(2 dims), and cannot be made smaller.
    """
    return jnp.std(promote_to_float32(filters), axis=1, ddof=1)


def std_homogeneity(filters: Float[Array, "n dims"]) -> Result:
    """Bartlett's test that all filters have one standard deviation: statistic, p-value.

    The law of the statistic is χ² of n − 1 degrees, its p-value the upper tail; the size at 5% is
    4 to 5% from 16 filters of 144 dims on. A p-value near 1 contradicts Gaussian filters as well:
    normalized or orthogonal filters spread less than those. A constant filter gives p = 0.

    Raises:
      ValueError: If there are fewer than two filters or two dims.
    """
    n, freedom = _at_least_two(filters), filters.shape[1] - 1
    variances = jnp.square(filter_stds(filters))
    mean = variances.mean()
    excess = variances / jnp.where(mean > 0, mean, 1) - 1
    statistic = -freedom * jnp.log1p(excess).sum() / (1 + (n + 1) / (3 * n * freedom))
    return statistic, jax.scipy.stats.chi2.sf(statistic, n - 1)


def std_equivalence(filters: Float[Array, "n dims"], *, delta: float) -> Result:
    """Test that the relative spread of the filters' σⱼ is below `delta`: statistic, p-value.

    The hypothesis to reject is a spread of at least delta. (n − 1) s²/(delta · mean)² is χ² of
    n − 1 degrees at the boundary, its lower tail the p-value; the size at 5% is 4 to 5.4%. As the
    spread of Gaussian filters is 1/√(2 dims), a delta near or below that cannot be supported.
    """
    n = _at_least_two(filters)
    stds = filter_stds(filters)
    statistic = (n - 1) * jnp.square(stds.std(ddof=1) / (delta * stds.mean()))
    return statistic, jax.scipy.stats.chi2.cdf(statistic, n - 1)


def std_t_test(filters: Float[Array, "n dims"], *, eps: float) -> Result:
    """The paper's second test, read literally: Student's t of (σⱼ/mean − 1)² against eps².

    The hypothesis to reject is a mean of at least eps²; the p-value is the lower tail. The squares
    are skewed: at the boundary a test of nominal size 5% has size 11% with 64 filters and 18% with
    16. Use `std_equivalence`.
    """
    n = _at_least_two(filters)
    stds = filter_stds(filters)
    square = jnp.square(stds / stds.mean() - 1)
    t = (square.mean() - eps**2) / (square.std(ddof=1) / n**0.5)
    return t, _student_survival(-t, n - 1)


@auto_sharded
def mean_equivalence(x: Float[Array, "*shape"], *, eps: float) -> Result:
    """Two one-sided t tests that |μ| < eps σ, of all entries of `x`: statistic, p-value.

    The hypothesis to reject is |μ| ≥ eps σ; the statistic is √n (eps − |mean|/S), S the standard
    deviation, and p its upper tail, the larger of the two. The size at the boundary is 5 to 5.6%.
    There is no power below (1.645/eps)² weights. Valid for symmetric laws too.
    """
    h = promote_to_float32(x).ravel()
    t = h.size**0.5 * (eps - jnp.abs(h.mean()) / h.std(ddof=1))
    return t, _student_survival(t, h.size - 1)


@auto_sharded
def mean_t_test(x: Float[Array, "*shape"], *, eps: float) -> Result:
    """The paper's third test, read literally: t test of |μ| ≤ eps S with S the *variance*.

    The hypothesis is that the mean is small; not rejecting it, which the paper counts as support,
    proves nothing: few weights pass always. With the variance the margin has the wrong unit: for
    weights of standard deviation 0.02 and eps = 0.05 it is 0.001 standard deviations, so that at
    μ = 0 and n = 2000 the size at 5% is 9.1%, not 0. Use `mean_equivalence`.
    """
    h = promote_to_float32(x).ravel()
    std = h.std(ddof=1)
    t = h.size**0.5 * (jnp.abs(h.mean()) - eps * jnp.square(std)) / std
    return t, _student_survival(t, h.size - 1)


@auto_sharded
def symmetry(x: Float[Array, "*shape"]) -> Result:
    """Test that the weights' law is symmetric about 0, as CWDA Plus assumes: statistic, p-value.

    sup |F(x) + F(−x) − 1| √n is the largest sum of signs of weights taken from the largest down,
    over √n (Butler 1969): under symmetry a random walk, whatever the law. The p-value is of the
    limit, P(sup |W| ≥ statistic) for a Brownian motion W on [0, 1]; it is conservative.
    """
    h = promote_to_float32(x).ravel()
    signs = jnp.sign(h)[jnp.argsort(-jnp.abs(h))]
    statistic = jnp.abs(jnp.cumsum(signs)).max() / h.size**0.5
    odd = 2 * jnp.arange(40, dtype=h.dtype) + 1
    terms = jnp.cos(jnp.pi * (odd - 1) / 2) / odd
    safe = jnp.maximum(statistic, 0.2)
    inside = 4 / jnp.pi * jnp.sum(terms * jnp.exp(-jnp.square(odd * jnp.pi / safe) / 8))
    # The tail by reflection, where 1 − inside would round: 2 P(|W| ≥ s) − 2 P(|W| ≥ 3s) + …
    k = jnp.arange(4, dtype=h.dtype)
    tails = jax.scipy.stats.norm.sf((2 * k + 1) * statistic)
    tail = 4 * jnp.sum(jnp.where(k % 2 == 0, tails, -tails))
    return statistic, jnp.where(statistic > 1, tail, 1 - inside)


@auto_sharded
def holm(p_values: Float[Array, " n"]) -> Float[Array, " n"]:
    """p-values of n tests adjusted for their number, as Holm (1979): those below α may be rejected.

    The i-th smallest is multiplied by n + 1 − i and raised to the one before it, at most to 1; the
    chance of any false rejection is then at most α, however the tests depend on each other.

    Example:
      >>> holm(jnp.array([0.01, 0.04, 0.03])).round(2).tolist()
      [0.03, 0.06, 0.06]
    """
    ranked = jnp.argsort(p_values)
    factors = jnp.arange(p_values.size, 0, -1, dtype=p_values.dtype)
    adjusted = jnp.minimum(jax.lax.cummax(factors * p_values[ranked]), 1)
    return jnp.zeros_like(p_values).at[ranked].set(adjusted)


def _student_survival(t: Float[Array, ""], freedom: int) -> Float[Array, ""]:
    """P(T > t) for Student's t; its square is a ratio that follows a Beta law."""
    square = jnp.square(t)
    tail = jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return jnp.where(t > 0, tail, 1 - tail)


def _at_least_two(filters: Float[Array, "n dims"]) -> int:
    """The number of filters."""
    if min(filters.shape) < 2:
        raise ValueError(f"there must be at least two filters and two dims; got {filters.shape}")
    return len(filters)
