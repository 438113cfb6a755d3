"""The Kolmogorov-Smirnov distance of weights to a Gaussian, and tests based on the distance.

Weights may have any shape, because only their values matter. Statistics and p-values are in at
least float32. A large p-value does not show that weights are normal, because there may be too few
weights to reject normality. With 10⁶ weights, the tests reject every trained layer. For so many
weights, report the distance itself, with a bound by `ks_bound`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from jaxnorm.internal import auto_sharded, center, check_flags, check_key, check_whole, varying_like
from pruning._arguments import at_least, floating, in_largest, scalar
from pruning.weight_tests._supremum import by_counting, by_sorting
from pruning.weight_tests._weight_tests import Scalar, TestResult

BATCH = 2**21  # the number of normal variables that are drawn at a time


def ks_normal(x: Float[Array, "*shape"], *, scale: Scalar | None = None) -> TestResult:
    """Kolmogorov-Smirnov test of all elements of `x` against N(0, scale²).

    The statistic is the `ks_distance` D, and the p-value is from Kolmogorov's limit distribution of
    √n D for n elements. If `scale` is not given, the root mean square of the data is used, as in
    the first test of Huang et al. (2020). Without `scale`, the p-value is slightly conservative. At
    n = 2000, tests at the levels 10, 5 and 1% reject Gaussian weights in 8.3, 4.1 and 0.8% of the
    cases. For an exact p-value, use `lilliefors` with `mean_known=True`. Without `scale`, data that
    are all zero give NaN.

    Example:
      >>> statistic, p_value = ks_normal(jnp.ones(512))
      >>> print(f"{statistic:.3f} {p_value:.3f}")
      0.841 0.000
    """
    statistic = ks_distance(x, scale=scale)
    return TestResult(statistic, _kolmogorov_survival(statistic * x.size**0.5))


@auto_sharded
def ks_distance(x: Float[Array, "*shape"], *, scale: Scalar | None = None) -> Float[Array, ""]:
    """The distance sup |F − Φ(·/scale)| between the weights' distribution F and N(0, scale²).

    If `scale` is not given, the root mean square of the weights is used, and weights that are all
    zero give NaN. The distance is exact up to rounding if weights are sorted. On a CPU, 2¹⁵ or more
    float32 weights are counted in bins instead of sorted, with an error of at most 10⁻⁷. The
    distance is piecewise smooth in `x` and `scale`.

    Raises:
      ValueError: `x` is empty, or `scale` is not positive. Under `jit`, a scale that is not
        positive gives NaN.
    """
    h = floating(x, "x").ravel()
    if scale is None:
        # After a division by the largest |x|, the sum of squares neither underflows nor overflows.
        h, _ = in_largest(h)
        c = jnp.sqrt(jnp.square(h).mean())
    else:
        c = scalar(scale, "scale", h.dtype)
    counted = h.dtype == jnp.float32 and h.size >= 2**15
    element, upto, over = jax.lax.platform_dependent(
        *jax.lax.stop_gradient((h, c)),
        cpu=by_counting if counted else by_sorting,
        default=by_sorting,
    )
    above = upto / h.size - jax.scipy.stats.norm.cdf(_entry(h, element) / c)
    # For a positive element, F − Φ is computed from the upper tails, which are small and therefore
    # have small rounding errors.
    tail = jax.scipy.stats.norm.cdf(-_entry(h, element) / c) - (h.size - upto) / h.size
    above = jnp.where(element > 0, tail, above)
    return jnp.where(over, above, -above)


def ks_bound(x: Float[Array, "*shape"], *, scale: Scalar | None = None) -> Float[Array, ""]:
    """A 95 % upper confidence bound on the distance of the distribution of weights to N(0, scale²).

    For n weights with the `ks_distance` D, the bound is D + √(log(2/0.05)/2n). This formula follows
    from the bound of Dvoretzky, Kiefer, Wolfowitz and Massart by the triangle inequality. The bound
    holds for any distribution of weights and any n, even if the scale is estimated from the data.
    If `scale` is not given, data that are all zero give NaN.
    """
    return ks_distance(x, scale=scale) + math.sqrt(math.log(2 / 0.05) / (2 * x.size))


def ks_equivalence(
    x: Float[Array, "*shape"], *, margin: Scalar, scale: Scalar | None = None
) -> TestResult:
    """Test that the distance of the weights' distribution to N(0, scale²) is below `margin`.

    The hypothesis that the test can reject is sup |F − Φ| ≥ margin. A small p-value supports
    normality up to the margin. If `scale` is not given, the root mean square of `x` is used, and
    data that are all zero give NaN. For n weights whose `ks_distance` D is below the margin, the
    p-value p is 2 exp(−2 n (margin − D)²), but at most 1. If D is not below the margin, p is 1. For
    a margin of 0.01 and normal weights of the given scale, about 74,000 weights are needed to get p
    ≤ 0.05 in 95 % of the cases. With fewer than 18,400 weights, p is never below 0.05.
    """
    statistic = ks_distance(x, scale=scale)
    short = jnp.maximum(scalar(margin, "margin", statistic.dtype) - statistic, 0)
    p_value = jnp.minimum(2 * jnp.exp(-2 * x.size * jnp.square(short)), 1)
    return TestResult(statistic, p_value)


@auto_sharded
def lilliefors(
    key: Key[Array, ""], x: Float[Array, "*shape"], *, mean_known: bool = False, samples: int = 999
) -> TestResult:
    """Test that the elements of `x` are normal with an unknown scale, with an exact p-value.

    The statistic is the distance D to the normal distribution with the data's own mean and standard
    deviation. With `mean_known`, the mean is 0 and the standard deviation is the data's root mean
    square, as Huang et al. (2020) assume. For n normal weights, the distribution of D depends only
    on n; Lilliefors (1967) has a table. Therefore the p-value (1 + #{D* ≥ D})/(1 + samples) is
    exact, where D* are the distances of random normal samples of the size of `x`. If the mean is
    estimated, Kolmogorov's p-value is nearly meaningless. At n = 2000, tests at the levels 10, 5
    and 1% then reject Gaussian weights in only 0.12, 0.015 and 0.00% of the cases.

    Under `vmap` with one key, layers of the same size share their random samples. If all weights
    are equal (with `mean_known`, if all are zero), the scale is zero and the result is NaN.

    Raises:
      TypeError: `key` is not a random key, or `samples` is not an `int`.
      ValueError: `x` is empty, or `samples` is below 1.

    Example:
      >>> statistic, p_value = lilliefors(jax.random.key(0), jnp.linspace(-1, 1, 600), samples=99)
      >>> print(f"{p_value:.2f}")
      0.01
    """

    check_flags(mean_known=mean_known)

    def distance(x: Float[Array, " n"]) -> Float[Array, ""]:
        return ks_distance(x if mean_known else center(x, 0))

    return against_samples(key, x, distance, samples)


@auto_sharded
def anderson_darling(
    key: Key[Array, ""], x: Float[Array, "*shape"], *, mean_known: bool = True, samples: int = 999
) -> TestResult:
    """Anderson and Darling's test that the elements of `x` are normal, with an exact p-value.

    With `mean_known`, the test is against N(0, c²), where c is the root mean square of the data.
    Without `mean_known`, the test is against the normal distribution with the data's own mean and
    standard deviation. Anderson and Darling's test detects heavy tails more often than
    `lilliefors`. For 432 weights from Student's t with five degrees of freedom, a test at 5 %
    rejects normality in 96 % of the cases without `mean_known`, and in 55 % with `mean_known`. For
    the same weights, `lilliefors` rejects normality in 84 %.

    The statistic A² = −n − Σ (2i − 1)(log Φ(z₍ᵢ₎) + log(1 − Φ(z₍ₙ₊₁₋ᵢ₎)))/n, with the sorted
    elements z₍ᵢ₎ in units of the scale, gives the tails more weight than `ks_normal` does. The
    p-value is exact, because it is computed from normal samples, as in `lilliefors`. Arguments,
    errors and edge cases are also the same as in `lilliefors`, but `mean_known` is true by default.
    `anderson_darling` sorts the weights.
    """

    check_flags(mean_known=mean_known)

    def statistic(x: Float[Array, " n"]) -> Float[Array, ""]:
        n = x.size
        x = x if mean_known else center(x, 0)
        z = jnp.sort(x) / jnp.sqrt(jnp.square(x).mean())
        # The sum in A² is near −n. To lose no digits, the logarithms of p = (i − ½)/n are
        # subtracted from the terms, and the sum of these logarithms is added in float64.
        middle = (np.arange(n) + 0.5) / n
        at_middle = -n - 4 * np.sum(middle * np.log(middle))
        p = jnp.asarray(middle, x.dtype)
        lower, upper = (jax.scipy.stats.norm.logcdf(y) - jnp.log(p) for y in (z, -z[::-1]))
        return float(at_middle) - 2 * jnp.sum(p * (lower + upper))

    return against_samples(key, x, statistic, samples)


def against_samples(
    key: Key[Array, ""],
    x: Float[Array, "*shape"],
    statistic: Callable[[Float[Array, " n"]], Float[Array, ""]],
    samples: int,
    sample: Callable[..., Float[Array, " n"]] = jax.random.normal,
) -> TestResult:
    """The statistic of `x`, and its p-value from the statistics of `samples` random samples.

    The statistic must not depend on the unit of `x`.
    """
    check_key(key)
    check_whole(samples=samples)
    at_least(1, samples=samples)
    h, _ = in_largest(floating(x, "x").ravel())
    of_x = statistic(h)

    def draw(key: Key[Array, ""]) -> Float[Array, ""]:
        return statistic(sample(key, shape=h.shape, dtype=h.dtype))

    at_once = max(1, BATCH // h.size)
    drawn = jax.lax.map(
        draw, jax.random.split(varying_like(key, h), samples), batch_size=min(at_once, samples)
    )
    # if the statistic is NaN, the p-value is NaN
    extreme = jnp.where(jnp.isnan(of_x), jnp.nan, jnp.sum(drawn >= of_x, dtype=of_x.dtype))
    return TestResult(of_x, (1 + extreme) / (1 + samples))


@jax.custom_jvp
def _entry(h: Float[Array, " n"], element: Float[Array, ""]) -> Float[Array, ""]:
    """Return `element`, an element of `h`. Equal elements of `h` share the derivative."""
    return element


@_entry.defjvp
def _entry_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    h, element = primals
    equal = h == element
    return _entry(h, element), jnp.where(equal, tangents[0], 0).sum() / equal.sum(dtype=h.dtype)


def _kolmogorov_survival(x: Float[Array, ""]) -> Float[Array, ""]:
    """The tail probability of Kolmogorov's distribution, by the faster of two theta series."""
    large = x > 1
    k = jnp.arange(1, 5, dtype=x.dtype)
    safe = jnp.where(large, x, 1)
    signs = jnp.array([1, -1, 1, -1], x.dtype)
    upper = 2 * jnp.sum(signs * jnp.exp(-2 * jnp.square(k * safe)))
    safe = jnp.where(large, 1, jnp.maximum(x, 0.05))
    terms = jnp.exp(-jnp.square((2 * k - 1) * jnp.pi / safe) / 8)
    return jnp.where(large, upper, 1 - (2 * jnp.pi) ** 0.5 / safe * terms.sum())
