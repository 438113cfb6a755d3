"""Section 2 of the pruning paper: the assumption (CWDA), and how it is tested."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Float, Key

import pruning
from geometry.claims._draws import generator, normal
from geometry.claims._types import Computed, Draws, Remark, Sampled, Statistics, Values, claims_of
from jaxnorm._numerics import chi_mean, promote_to_float32
from pruning.weight_tests import TestResult

claim = claims_of("CWDA")

EQUATION_2 = claim(
    "Equation 2, CWDA",
    "The filters of a trained layer are independent draws of N(0, c²I)",
    reason="an assumption about trained weights: docs/results/resnet20 has it tested",
)

KS_WEIGHTS = 100


def plain_ks(key: Key[Array, ""]) -> Statistics:
    """Whether √n D exceeds 1.358, with mean and scale known and with both estimated."""
    x = normal(key, KS_WEIGHTS)
    fitted = (x - x.mean()) / jnp.std(x, ddof=1)

    def rejects(x: Array) -> Array:
        distance = pruning.weight_tests.ks_distance(x, scale=1.0)
        return (distance * KS_WEIGHTS**0.5 > 1.358).astype(x.dtype)

    return {"rejects_known": rejects(x), "rejects_estimated": rejects(fitted)}


KS = Draws(plain_ks, 160_000, batch_size=8000)


def ks_size() -> float:
    """Exact size of the plain test with known parameters at the asymptotic 5 % point."""
    return float(scipy.stats.kstwo.sf(1.358 / KS_WEIGHTS**0.5, KS_WEIGHTS))


def exact_ks(key: Key[Array, ""]) -> Statistics:
    """p-value of the test of Lilliefors with 19 fresh samples: uniform on 1/20, …, 1."""
    data, fresh = jax.random.split(key)
    return {"p_value": pruning.lilliefors(fresh, normal(data, 50), samples=19)[1]}


EXACT_KS = Draws(exact_ks, 4000)

TEST_1 = claim(
    "Section 2.1, test (1)",
    "Kolmogorov-Smirnov's test of all weights against N(0, c²), at 5 %",
    Sampled("size with known parameters", ks_size, KS, "rejects_known"),
    Sampled.rejected("size 5 % with mean and scale estimated", 0.05, KS, "rejects_estimated"),
    Sampled.corrected(
        "fresh samples make p uniform: E p = 21/40, B = 19", 21 / 40, EXACT_KS, "p_value"
    ),
    printed="plain p-values",
    corrected="p-values by fresh samples put through the same estimation",
)


def std_t_test(filters: Float[Array, "filters dims"], *, margin: float) -> TestResult:
    """The paper's second test, read literally: Student's t of (σⱼ/mean − 1)² against margin².

    The hypothesis to reject is a mean of at least margin²; the p-value is the lower tail. The
    squares are skewed: at the boundary a test of nominal size 5% has size 11% with 64 filters and
    18% with 16.
    """
    n, stds = len(filters), pruning.weight_tests.filter_stds(filters)
    square = jnp.square(stds / stds.mean() - 1)
    t = (square.mean() - margin**2) / (square.std(ddof=1) / n**0.5)
    return TestResult(t, _student_survival(-t, n - 1))


def _student_survival(t: Float[Array, ""], freedom: int) -> Float[Array, ""]:
    """P(T > t) for Student's t; its square is a ratio that follows a Beta distribution."""
    square = jnp.square(t)
    tail = jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return jnp.where(t > 0, tail, 1 - tail)


STD_FILTERS, STD_DIMS = 16, 144
STD_DEGREES = STD_DIMS - 1


def std_tests(key: Key[Array, ""]) -> Statistics:
    """σ of one filter, and whether the two tests reject a spread at their margin, at 5 %."""
    v = normal(key, STD_FILTERS, STD_DIMS)
    margin = (STD_DEGREES / chi_mean(STD_DEGREES) ** 2 - 1) ** 0.5
    t_test = std_t_test(v, margin=margin)[1]
    chi_square = pruning.std_equivalence(v, margin=margin)[1]
    return {
        "std": pruning.weight_tests.filter_stds(v)[0],
        "t_test_rejects": (t_test < 0.05).astype(v.dtype),
        "chi_square_rejects": (chi_square < 0.05).astype(v.dtype),
    }


STDS = Draws(std_tests, 4000, batch_size=500)


def many_stds(key: Key[Array, ""]) -> Statistics:
    return {"std": pruning.weight_tests.filter_stds(normal(key, 1000, STD_DIMS))}


MANY_STDS = Draws(many_stds, 40_000, batch_size=10_000, draws_per_key=1000)

TEST_2 = claim(
    "Section 2.1, test (2)",
    "Student's t test that the filters' standard deviations are alike, at 5 %",
    Sampled.rejected("size 5 % at the margin", 0.05, STDS, "t_test_rejects"),
    Sampled.corrected(
        "χ² test: size at most 5 % at the margin", 0.05, STDS, "chi_square_rejects", side="≤"
    ),
    Sampled.corrected(
        "E σⱼ = E χ_{d−1}/√(d − 1)", chi_mean(STD_DEGREES) / STD_DEGREES**0.5, STDS, "std"
    ),
    Sampled.corrected(
        "Var σⱼ = 2h(d − 1)/(d − 1)",
        lambda: pruning.gaussian.chi_variance(1.0, float(STD_DEGREES)) / STD_DEGREES,
        MANY_STDS,
        "std",
        moment="variance",
    ),
    printed="t test of (σⱼ/mean − 1)²",
    corrected="χ² test of the spread: the t test's size is 0.18",
)


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


def _change_with_unit(test: Callable, key: Array) -> float:
    """p-value of weights minus that of the same weights in a unit 50 times as large."""
    x = generator(key).normal(size=4000)
    p_value = jax.jit(lambda x: test(x, margin=0.05).p_value)
    return float(p_value(jnp.asarray(x)) - p_value(jnp.asarray(0.02 * x)))


def units_of_the_literal_test(key: Key[Array, ""]) -> Values:
    return _change_with_unit(mean_t_test, key)


def units_of_the_test(key: Key[Array, ""]) -> Values:
    return _change_with_unit(pruning.mean_equivalence, key)


MEAN_WEIGHTS, MEAN_MARGIN = 500, 0.1


def mean_tests(key: Key[Array, ""]) -> Statistics:
    p_value = pruning.mean_equivalence(normal(key, MEAN_WEIGHTS), margin=MEAN_MARGIN)[1]
    return {"rejects": (p_value < 0.05).astype(jnp.float32)}


MEANS = Draws(mean_tests, 20_000, batch_size=2000)


def mean_test_power() -> float:
    """P(|mean| + t S/√n < eps S) at mean 0, exactly: an integral over S."""
    n = MEAN_WEIGHTS
    width = MEAN_MARGIN * n**0.5 - scipy.stats.t.isf(0.05, n - 1)

    def integrand(square: float) -> float:
        inside = 2 * scipy.stats.norm.cdf(width * (square / (n - 1)) ** 0.5) - 1
        return float(inside * scipy.stats.chi2.pdf(square, n - 1))

    return scipy.integrate.quad(integrand, n / 2, 2 * n)[0]


TEST_3 = claim(
    "Section 2.1, test (3)",
    "|μ| ≤ eps S with S the sample variance",
    Computed.rejected(
        "p with S the variance does not change with the unit", units_of_the_literal_test
    ),
    Computed.corrected("nor with S the standard deviation", units_of_the_test),
    Sampled.corrected("power of the two t tests at μ = 0", mean_test_power, MEANS, "rejects"),
    printed="S a variance",
    corrected="S the standard deviation, two one-sided tests",
)


def distances_to_a_gaussian(key: Key[Array, ""]) -> Values:
    """Of a uniform distribution, and of a normal one truncated at 2 σ, minus the known values."""
    x = np.linspace(-4, 4, 2_000_001)
    uniform = np.clip(x / 12**0.5 + 0.5, 0, 1)
    truncated_normal = scipy.stats.truncnorm(-2, 2)
    truncated = truncated_normal.cdf(x * truncated_normal.std())
    return [
        float(np.abs(cdf - scipy.stats.norm.cdf(x)).max() - expected)
        for cdf, expected in ((uniform, 0.057207), (truncated, 0.016665))
    ]


FIGURE_3 = claim(
    "Figure 3, Table 3",
    "Histograms look Gaussian in some 40 settings of training",
    Computed(
        "distance of uniform and of truncated normal starts",
        distances_to_a_gaussian,
        tolerance=1e-6,
    ),
    corrected="at the start the answer is known: 0.0572 uniform, 0.0167 truncated normal",
    remark=Remark("over-reading", "settings only"),
)
