"""Section 2.1 of the pruning paper, on tests of (2) equal standard deviations and (3) mean 0."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Float, Key

import pruning
from claims.draws import generator, normal
from geometry.claims import Claim, Draws, Remark, Statistics, Values
from jaxnorm.internal import chi_mean, promote_to_float32
from pruning.weight_tests import TestResult

claim = partial(Claim, "CWDA")


def std_t_test(filters: Float[Array, "filters dims"], *, margin: float) -> TestResult:
    """The paper's second test as printed, which is a t test of (σⱼ/mean − 1)² against margin².

    The test rejects if the mean of the squares is significantly below margin², so the p-value is
    the lower tail. The distribution of the squares is skewed. Therefore, if the mean is margin², a
    test at the level 5% rejects in 11% of the cases with 64 filters and in 20% with 16 filters.
    """
    n, stds = len(filters), pruning.weight_tests.filter_stds(filters)
    square = jnp.square(stds / stds.mean() - 1)
    t = (square.mean() - margin**2) / (square.std(ddof=1) / n**0.5)
    return TestResult(t, _student_survival(-t, n - 1))


def _student_survival(t: Float[Array, ""], freedom: int) -> Float[Array, ""]:
    """The tail probability P(T > t) of Student's t.

    `freedom` / (`freedom` + T²) has a Beta distribution.
    """
    square = jnp.square(t)
    tail = jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return jnp.where(t > 0, tail, 1 - tail)


STD_FILTERS, STD_DIMS = 16, 144
STD_DEGREES = STD_DIMS - 1


def own_spread() -> float:
    """The standard deviation of the filters' σⱼ, divided by their mean, for Gaussian filters."""
    return (STD_DEGREES / chi_mean(STD_DEGREES) ** 2 - 1) ** 0.5


def std_tests(key: Key[Array, ""]) -> Statistics:
    """Whether two tests show at 5 % that a spread is below a margin, and Bartlett's p-value.

    The margin is the true spread of the filters, or 1.5 times the true spread.
    """
    v, margin = normal(key, STD_FILTERS, STD_DIMS), own_spread()

    def supports(test: Callable, margin: float) -> Array:
        return (test(v, margin=margin).p_value < 0.05).astype(v.dtype)

    return {
        "t_at_margin": supports(std_t_test, margin),
        "t_below_margin": supports(std_t_test, 1.5 * margin),
        "chi_square_at_margin": supports(pruning.weight_tests.std_equivalence, margin),
        "chi_square_below_margin": supports(pruning.weight_tests.std_equivalence, 1.5 * margin),
        "bartlett_p_value": pruning.std_homogeneity(v).p_value,
    }


STDS = Draws(std_tests, 120_000, batch_size=4000)


def chi_square_power() -> float:
    """The probability that χ² with 15 degrees of freedom is below 2.25 times its 5 % point."""
    chi_square = scipy.stats.chi2(STD_FILTERS - 1)
    return float(chi_square.cdf(2.25 * chi_square.ppf(0.05)))


def many_stds(key: Key[Array, ""]) -> Statistics:
    return {"std": pruning.weight_tests.filter_stds(normal(key, 1000, STD_DIMS))}


MANY_STDS = Draws(many_stds, 40_000, batch_size=10_000, draws_per_key=1000)
# The rejection rates of the t test if the true spread equals the margin, and if the spread is 1.5
# times the margin. The rates were computed from 2 million draws. Each draw has 16 values of a
# standard deviation, which are chi variables with 143 degrees of freedom.
T_SIZE, T_POWER = 0.2008, 0.9106


TEST_2 = claim(
    "Section 2.1, test (2)",
    "The filters of a layer pass Student's $t$ test of equal standard deviations, at 5 %",
    printed="Section 2.1 (2) uses a Student’s t test “to check if the variance of these σj is "
    "small enough.” No statistic, margin or size is printed, and Appendix G is empty.",
    corrected=r"A $\chi^2$ test of the spread of the $\sigma_j$ is a possible reading of test "
    "(2), and has the nominal size",
    remark=Remark(
        "hypothesis",
        r"The paper does not specify its test of equal standard deviations $\sigma_j$ of the "
        r"filters. A $t$ test of the squared relative deviations of $\sigma_j$ is not valid. For "
        "16 filters of 144 weights, such a $t$ test at the level 5 % rejects the hypothesis of "
        "equal standard deviations in 20 % of all cases in which the hypothesis is true.",
    ),
    why=r"The squares $(\sigma_j/\text{mean} - 1)^2$ have a skewed distribution. If the mean of "
    "the squares is small, their standard deviation is small too, so $t$ is too often far "
    "below 0. If the standard deviations differ by exactly the margin, the statistic $(n - "
    r"1)s^2/(\text{margin} \cdot \text{mean})^2$ of the $\sigma_j$ has nearly a $\chi^2$ "
    "distribution.",
)
TEST_2.mean("the t test has size 5 % at the margin", 0.05, STDS, "t_at_margin", form="overread")
TEST_2.mean("the t test's size is 0.20", T_SIZE, STDS, "t_at_margin", within=1e-3, form="corrected")
TEST_2.mean(
    "the t test's power is 0.91 at 1.5 times the margin",
    T_POWER,
    STDS,
    "t_below_margin",
    within=1e-3,
    form="corrected",
)
TEST_2.mean(
    "χ² test: size 5 % at the margin",
    0.05,
    STDS,
    "chi_square_at_margin",
    within=5e-4,
    form="corrected",
)
TEST_2.mean(
    "χ² test: power at 1.5 times the margin",
    chi_square_power,
    STDS,
    "chi_square_below_margin",
    within=2e-3,
    form="corrected",
)
TEST_2.mean(
    "Bartlett's p is uniform: E p = 1/2",
    0.5,
    STDS,
    "bartlett_p_value",
    within=5e-3,
    form="corrected",
)
TEST_2.mean(
    "E σⱼ = E χ_{d−1}/√(d − 1)",
    lambda: chi_mean(STD_DEGREES) / STD_DEGREES**0.5,
    MANY_STDS,
    "std",
    against=1.0,
    form="corrected",
)
TEST_2.variance(
    "Var σⱼ = 2h(d − 1)/(d − 1)",
    lambda: pruning.gaussian.chi_variance(1.0, float(STD_DEGREES)) / STD_DEGREES,
    MANY_STDS,
    "std",
    form="corrected",
)


def mean_t_test(x: Float[Array, "*shape"], *, margin: float) -> TestResult:
    """The paper's third test as printed, a t test of |μ| ≤ margin · S, where S is the *variance*.

    The hypothesis is that the mean is small. If the test does not reject, the paper concludes that
    the hypothesis is true, but with few weights, the test seldom rejects. The margin has the wrong
    unit, because S is the variance. For weights of standard deviation 0.02 and a margin of 0.05,
    the largest allowed mean is 0.001 times the standard deviation. At μ = 0 and n = 2000, a test at
    the level 5% therefore rejects in 9.1% of the cases, instead of almost never.
    """
    h = promote_to_float32(x).ravel()
    std = h.std(ddof=1)
    t = h.size**0.5 * (jnp.abs(h.mean()) - margin * jnp.square(std)) / std
    return TestResult(t, _student_survival(t, h.size - 1))


def _change_with_unit(test: Callable, key: Array) -> float:
    """The p-value of `test` for Gaussian weights, minus the p-value for 0.02 times the weights."""
    x = generator(key).normal(size=4000)
    p_value = jax.jit(lambda x: test(x, margin=0.05).p_value)
    return float(p_value(jnp.asarray(x)) - p_value(jnp.asarray(0.02 * x)))


MEAN_WEIGHTS, MEAN_MARGIN = 500, 0.1


def mean_tests(key: Key[Array, ""]) -> Statistics:
    p_value = pruning.mean_equivalence(normal(key, MEAN_WEIGHTS), margin=MEAN_MARGIN)[1]
    return {"rejects": (p_value < 0.05).astype(jnp.float32)}


MEANS = Draws(mean_tests, 20_000, batch_size=2000)


def mean_test_power() -> float:
    """The probability P(|mean| + t S/√n < margin S) at mean 0, as an integral over S²."""
    n = MEAN_WEIGHTS
    width = MEAN_MARGIN * n**0.5 - scipy.stats.t.isf(0.05, n - 1)

    def integrand(square: float) -> float:
        inside = 2 * scipy.stats.norm.cdf(width * (square / (n - 1)) ** 0.5) - 1
        return float(inside * scipy.stats.chi2.pdf(square, n - 1))

    return scipy.integrate.quad(integrand, n / 2, 2 * n)[0]


TEST_3 = claim(
    "Section 2.1, test (3)",
    r"Student's $t$ tests show that the mean $\mu$ of the weights satisfies $\mu \le \varepsilon "
    r"\cdot S$ and $\mu \ge -\varepsilon \cdot S$, where $S$ is the sample variance",
    printed="Section 2.1 (3): “check if µ ≤ ε · S and µ ≥ −ε · S, where ε is a small constant and"
    " S is sample variance”",
    corrected="In test (3), $S$ must be the sample standard deviation",
    fault="false",
    remark=Remark(
        "hypothesis",
        "The paper does not say which hypotheses the two $t$ tests of the mean must reject. Only "
        r"tests that reject $\mu \ge \varepsilon \cdot S$ and $\mu \le -\varepsilon \cdot "
        r"S$ show that the mean $\mu$ is small.",
    ),
    why="A mean has the unit of a weight, but a variance has the unit of a squared weight, "
    "so the result of the printed test changes if all weights are multiplied by a number.",
)


@TEST_3.equal("p with S the variance does not change with the unit", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    return _change_with_unit(mean_t_test, key)


@TEST_3.equal("p with S the standard deviation does not change with the unit", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return _change_with_unit(pruning.mean_equivalence, key)


TEST_3.mean(
    "power of the two t tests at μ = 0", mean_test_power, MEANS, "rejects", form="corrected"
)
