"""Tests the spread, mean and covariance of filters that are assumed to come from N(0, c² I).

For tests of the distribution of weights, see `_ks`. The null hypothesis of `std_equivalence` and
`mean_equivalence` is that the assumption of Huang et al. (2020) about the filters is false.
Therefore a small p-value of these two tests supports the assumption. Statistics and p-values are in
at least float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import auto_sharded, center, matmul, norm
from pruning._arguments import floating, in_largest, inside_unit_interval, matrix, scalar, vectors

Scalar = int | float | Float[Array, ""]


class TestResult(NamedTuple):
    """The statistic of a test and its p-value."""

    __test__ = False  # pytest must not collect the class as a test

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]


class Covariance(NamedTuple):
    """Diagnostics of the covariance matrix of filters: z-scores, and the range of the eigenvalues.

    For Gaussian filters, the z-scores are approximately N(0, 1)-distributed. Eigenvalues are in
    units of the mean variance c². For many Gaussian filters of many dims, the eigenvalues lie in
    the interval of Marchenko and Pastur, (1 ± √(n/(dims − 1)))². Therefore the matrix is not close
    to c² times the identity, even if each element is close.

    Attributes:
      diagonal: The z-score of the spread of the variances.
      off_diagonal: The z-score of the mean square of the correlations.
      sphericity: The z-score of John's U = tr (C/c² − I)²/n.
      off_diagonal_mass: The ratio Σᵢ≠ⱼ Cᵢⱼ² / Σ Cᵢᵢ². For Gaussian filters, the ratio of the
        expectations of the two sums is (n − 1)/(dims + 1).
      smallest: The smallest eigenvalue. If n ≥ dims, n − dims + 1 eigenvalues are 0, and `smallest`
        is the smallest of the others.
      largest: The largest eigenvalue.
      low: The lower end of the interval of Marchenko and Pastur.
      high: The upper end of the interval.
    """

    diagonal: Float[Array, ""]
    off_diagonal: Float[Array, ""]
    sphericity: Float[Array, ""]
    off_diagonal_mass: Float[Array, ""]
    smallest: Float[Array, ""]
    largest: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]


def filter_stds(filters: Float[Array, "filters dims"]) -> Float[Array, " filters"]:
    """Standard deviation σⱼ of the weights of each filter, with dims − 1 in the denominator.

    The spread is the standard deviation of the σⱼ divided by the mean of the σⱼ. For Gaussian
    filters, the spread is about 1/√(2 dims). For a constant filter, σⱼ is exactly 0 and has
    gradient zero. For a filter with one weight, σⱼ is NaN.
    """
    h = matrix(filters)
    return norm(center(h, 1)).squeeze(1) / (h.shape[1] - 1) ** 0.5


def std_homogeneity(filters: Float[Array, "filters dims"]) -> TestResult:
    """Bartlett's test that all filters have one standard deviation.

    For n filters, the statistic has approximately the χ² distribution with n − 1 degrees of
    freedom, and the p-value is the upper tail of the χ² distribution. At the level 5%, the test
    rejects Gaussian filters in about 5% of the cases. A p-value near 1 also contradicts Gaussian
    filters: the standard deviations of normalized or orthogonal filters differ less than those of
    Gaussian filters. If a filter is constant, p is 0, even if all filters are constant.

    Raises:
      ValueError: There are fewer than two filters or two dims.
    """
    n, freedom = _sizes(filters)
    variances = jnp.square(in_largest(filter_stds(filters))[0])
    mean = variances.mean()
    excess = variances / jnp.where(mean > 0, mean, 1) - 1
    statistic = -freedom * jnp.log1p(excess).sum() / (1 + (n + 1) / (3 * n * freedom))
    return TestResult(statistic, auto_sharded(jax.scipy.stats.chi2.sf)(statistic, n - 1))


def std_equivalence(filters: Float[Array, "filters dims"], *, margin: Scalar) -> TestResult:
    """Test that the relative spread of the filters' standard deviations σⱼ is below `margin`.

    The hypothesis that the test can reject is a spread of at least the margin. Let m and s² be the
    mean and the variance of the σⱼ. If the spread equals the margin and the σⱼ are normal, (n − 1)
    s²/(margin · m)² has approximately the χ² distribution with n − 1 degrees of freedom. The
    p-value is the lower tail of the χ² distribution. If the spread of Gaussian filters equals the
    margin, a test at the level 5% rejects in 4 to 5.4% of the cases. For log-normal σⱼ whose spread
    equals the margin, the test rejects in up to 6% of the cases at a margin of 0.2, and in up to
    16% at a margin of 0.5. The spread of Gaussian filters is about 1/√(2 dims), so the test has no
    power for a margin near or below 1/√(2 dims). If all filters are constant, the mean standard
    deviation is 0 and the result is NaN.

    Raises:
      ValueError: There are fewer than two filters or two dims, or `margin` is not positive.
    """
    n, _ = _sizes(filters)
    stds, _ = in_largest(filter_stds(filters))
    mean = stds.mean()
    boundary = scalar(margin, "margin", stds.dtype) * jnp.where(mean == 0, jnp.nan, mean)
    statistic = jnp.square(center(stds, 0) / boundary).sum()
    return TestResult(statistic, auto_sharded(jax.scipy.stats.chi2.cdf)(statistic, n - 1))


@auto_sharded
def mean_equivalence(x: Float[Array, "*shape"], *, margin: Scalar) -> TestResult:
    """Test by two one-sided t tests that |μ| < margin · σ.

    Here μ and σ are the mean and the standard deviation of the distribution of the elements of `x`.

    The hypothesis that the test can reject is |μ| ≥ margin · σ. The statistic is √n (margin −
    |mean|/S), where S is the standard deviation of the elements. The p-value is the larger of the
    two upper tails. If |μ| = margin · σ, a test at the level 5% rejects in at most 6% of the cases
    for margins up to 0.3. At a margin of 1 and for many weights, the test rejects in 9% of the
    cases for Gaussian weights, and in 14% for weights with Laplace's distribution. With fewer than
    (1.645/margin)² weights, the test has no power. For small margins and many weights, the test is
    approximately valid for any distribution of weights that has a finite variance. If all weights
    are equal, S is 0, and the p-value is 1, or NaN if the weights are 0. With only one weight, the
    result is NaN.

    Raises:
      ValueError: `x` is empty, or `margin` is not positive.
    """
    h, _ = in_largest(floating(x, "x").ravel())
    deviation = norm(center(h, 0), 0)[0] / (h.size - 1 or jnp.nan) ** 0.5
    t = h.size**0.5 * (scalar(margin, "margin", h.dtype) - jnp.abs(h.mean()) / deviation)
    return TestResult(t, _student_survival(t, h.size - 1))


@auto_sharded
def symmetry(x: Float[Array, "*shape"]) -> TestResult:
    """Test that the weights' distribution is symmetric about 0.

    The conjecture "CWDA Plus" about trained filters assumes a symmetric distribution, Huang et al.
    (2020).

    The statistic is sup |F(x) + F(−x) − 1| √n. Let the signs of the n weights be in descending
    order of the weights' absolute values. The statistic is the largest absolute partial sum of the
    signs, divided by √n (Butler 1969). For any symmetric distribution, the partial sums are a
    random walk. The p-value is P(sup |W| ≥ statistic) for the limit of the random walk, a Brownian
    motion W on [0, 1]. The p-value is conservative.
    """
    h = floating(x, "x").ravel()
    signs = jnp.sign(h)[jnp.argsort(-jnp.abs(h))]
    statistic = jnp.abs(jnp.cumsum(signs)).max() / h.size**0.5
    odd = 2 * jnp.arange(40, dtype=h.dtype) + 1
    terms = jnp.cos(jnp.pi * (odd - 1) / 2) / odd
    safe = jnp.maximum(statistic, 0.2)
    inside = 4 / jnp.pi * jnp.sum(terms * jnp.exp(-jnp.square(odd * jnp.pi / safe) / 8))
    # For large statistics s, the p-value is computed by the reflection principle as 2 P(|Z| ≥ s) −
    # 2 P(|Z| ≥ 3s) + … for a normal Z, because 1 − `inside` would lose digits.
    k = jnp.arange(4, dtype=h.dtype)
    tails = jax.scipy.stats.norm.sf((2 * k + 1) * statistic)
    tail = 4 * jnp.sum(jnp.where(k % 2 == 0, tails, -tails))
    return TestResult(statistic, jnp.where(statistic > 1, tail, 1 - inside))


@auto_sharded
def holm(p_values: Float[Array, " tests"]) -> Float[Array, " tests"]:
    """The p-values of n tests, adjusted for the number of tests by Holm (1979).

    Reject the hypotheses whose adjusted p-value is below α. The i-th smallest p-value is multiplied
    by n + 1 − i. If this product is below the adjusted value of the next smaller p-value, the
    adjusted value of the smaller p-value is used instead. All adjusted p-values are at most 1. With
    adjusted p-values, the probability of at least one false rejection is at most α, for any
    dependence between the tests. A NaN remains NaN, but counts as one of the n tests.

    Raises:
      ValueError: A p-value lies outside [0, 1]. Under `jit`, values are not checked.

    Example:
      >>> holm(jnp.array([0.01, 0.04, 0.03])).round(2).tolist()
      [0.03, 0.06, 0.06]
    """
    p_values = floating(p_values, "p_values")
    vectors(p_values=p_values)
    inside_unit_interval(p_values, "p_values")
    ranked = jnp.argsort(p_values)
    factors = jnp.arange(p_values.size, 0, -1, dtype=p_values.dtype)
    adjusted = jnp.minimum(jax.lax.cummax(factors * p_values[ranked]), 1)
    return jnp.zeros_like(p_values).at[ranked].set(adjusted)


@auto_sharded
def covariance(filters: Float[Array, "filters dims"]) -> Float[Array, "filters filters"]:
    """The covariance matrix of the filters, as in Figure 6 of Huang et al. (2020).

    The mean of each filter is subtracted, and sums of products are divided by dims − 1. If filters
    have only one weight, the result is NaN.
    """
    h = center(matrix(filters), 1)
    return matmul(h, h.T) / (h.shape[1] - 1)


@auto_sharded
def covariance_report(filters: Float[Array, "filters dims"]) -> Covariance:
    """Diagnostics of the covariance of filters, standardized by exact means and variances.

    Let C be the covariance matrix of n filters, ν = dims − 1 and c² the mean variance. For
    independent Gaussian filters, the shares Cᵢᵢ/(n c²) of the variances have a Dirichlet
    distribution with n parameters ν/2. With m = nν, the sum ν/2 Σ (Cᵢᵢ/c² − 1)² then has the mean
    (n − 1)m/(m + 2) and the variance 2(n − 1)(1 + 2/ν)m⁴/((m + 2)²(m + 4)(m + 6)). The n(n − 1)/2
    squared correlations are pairwise independent with mean 1/ν and variance 2(ν − 1)/(ν²(ν + 2)).
    Therefore the z-scores `diagonal` and `off_diagonal` have mean 0 and variance 1 for any n and
    dims. For U = tr (C/c² − I)²/n, (νU − n − 1)/2 is N(0, 1) for many filters and dims (Ledoit and
    Wolf 2002). For orthogonal filters, the z-score `off_diagonal` is far below 0. If a filter is
    constant, it has no correlations, and `off_diagonal` is NaN.

    Raises:
      ValueError: There are fewer than two filters or three dims.
    """
    n, nu = _sizes(filters, min_dims=3)
    c = covariance(in_largest(matrix(filters))[0])
    variances = jnp.diagonal(c)
    c = c / variances.mean()
    relative = jnp.diagonal(c)
    spread = nu / 2 * jnp.square(relative - 1).sum()
    freedom = n * nu  # the docstring calls this number m
    mean = (n - 1) / (1 + 2 / freedom)
    variance = 2 * (n - 1) * (1 + 2 / nu) / (1 + 2 / freedom) ** 2
    variance = variance / ((1 + 4 / freedom) * (1 + 6 / freedom))
    others = ~jnp.eye(n, dtype=bool)
    square = jnp.where(others, jnp.square(c), 0)
    inverse = 1 / relative
    correlation = (square * inverse[:, None] * inverse[None, :]).sum() / (n * (n - 1))
    stderr = (2 * (nu - 1) / (nu**2 * (nu + 2)) / (n * (n - 1) / 2)) ** 0.5
    u = (square.sum() + jnp.square(relative - 1).sum()) / n
    values = jnp.linalg.eigvalsh(c)
    edge = (n / nu) ** 0.5
    return Covariance(
        diagonal=(spread - mean) / variance**0.5,
        off_diagonal=(correlation - 1 / nu) / stderr,
        sphericity=(nu * u - n - 1) / 2,
        off_diagonal_mass=square.sum() / jnp.square(relative).sum(),
        smallest=values[max(n - nu, 0)],
        largest=values[-1],
        low=jnp.asarray((1 - edge) ** 2, c.dtype),
        high=jnp.asarray((1 + edge) ** 2, c.dtype),
    )


def _student_survival(t: Float[Array, ""], freedom: int) -> Float[Array, ""]:
    """P(T > `t`) for Student's T, from the Beta distribution of freedom/(freedom + T²)."""
    square = jnp.square(t)
    tail = jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return jnp.where(t <= 0, 1 - tail, tail)


def _sizes(filters: Float[Array, "filters dims"], min_dims: int = 2) -> tuple[int, int]:
    """The number of filters, and dims minus one; raise if there are too few filters or dims."""
    n, dims = matrix(filters).shape
    if n < 2 or dims < min_dims:
        raise ValueError(
            f"there must be at least 2 filters and {min_dims} dims; got (filters, dims) = "
            f"{(n, dims)}"
        )
    return n, dims - 1
