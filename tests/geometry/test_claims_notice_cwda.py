"""Wrong versions of functions that claims of the pruning paper use: a check must fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from claims import PAPERS
from claims.cwda import spread_and_mean
from geometry.claims import Computed
from geometry.filters import gaussian_filter_geometry, welch_bound
from jaxnorm.internal import _numerics
from pruning import criteria, gaussian, ranking, weight_tests
from pruning.weight_tests import TestResult
from tests.support.faults import (
    at_other,
    centroid,
    constant,
    exchanged,
    kendall,
    largest,
    middle_by_coordinate,
    never,
    option,
    other_tail,
    pearson,
    shifted,
    squared,
)
from tests.support.mutations import Mutation, result, times, unnoticed

OFF = times(1.1)
MOMENTS = ("Proposition 2, Equations 14 and 15", "Proposition 3, Equations 16 and 17")
RANKS = "Conclusion from Theorem 1"
FIRST = "Theorem 1, Equations 3 and 25"
THIRD = "Theorem 3, Equation 6"
SECOND = "Equations 4 and 5, Theorem 2"
FILTERS = "Table 2 and its footnote"
SCORES = "Section 4.2, consequences"
TESTS = tuple(f"Section 2.1, test ({n})" for n in (1, 2, 3))


def of_other_variance(right):
    """Divide by n instead of n − 1 in the variance."""
    return lambda x: jnp.std(x, axis=1)


def with_own(right):
    """Count one filter less in the overlap."""
    return lambda a, b, *, ratio: right(a, b, ratio=ratio) - 1 / (ratio * a.size)


def without_l1(right):
    """Replace the scores by l1 with the scores by l2."""
    return lambda v: (scores := right(v)) | {"l1": scores["l2"]}


def with_squares(right):
    """Let GM sum squared distances."""
    return lambda v: right(v) | {"gm": jnp.square(v[:, None] - v[None]).sum((1, 2))}


def to_the_centroid(right):
    """Let Fermat's scores be distances to the centroid."""
    return lambda v: right(v) | {"fermat": jnp.linalg.norm(v - v.mean(0)[None], axis=1)}


MUTATIONS = [
    # functions for moments
    Mutation(gaussian.chi_variance, "halved", times(0.5), (MOMENTS[1], "Theorem 5, item 1")),
    Mutation(gaussian.chi_variance, "+10 %", OFF, (MOMENTS[1], "Lemma 2, Equations 23 and 24")),
    Mutation(gaussian.chi_variance, "its root", result(jnp.sqrt), (MOMENTS[1],)),
    Mutation(gaussian.chi_variance, "dims − 1", at_other(1, lambda d: d - 1), (MOMENTS[1],)),
    Mutation(pruning.gaussian.chi_moment, "+10 %", OFF, (MOMENTS[1],)),
    Mutation(pruning.gaussian.chi_moment, "dims + 1", at_other(1, lambda d: d + 1), (MOMENTS[1],)),
    Mutation(pruning.gaussian.chi_moment, "order + 1", at_other(2, lambda j: j + 1), (MOMENTS[1],)),
    Mutation(pruning.gaussian.half_normal_moment, "+10 %", OFF, (MOMENTS[0],)),
    Mutation(
        pruning.gaussian.half_normal_moment,
        "variance for std",
        at_other(0, np.square),
        (MOMENTS[0],),
    ),
    Mutation(pruning.gaussian.amoroso_moment, "+10 %", OFF, ("Proposition 1, Equations 11 to 13",)),
    Mutation(
        pruning.gaussian.amoroso_moment,
        "finite always",
        result(lambda moment: jnp.where(jnp.isinf(moment), -1.0, moment)),
        ("Proposition 1, Equations 11 to 13",),
    ),
    Mutation(
        pruning.gaussian.amoroso_moment,
        "without its a",
        at_other(0, lambda a: 0 * a),
        ("Proposition 1, Equations 11 to 13",),
    ),
    Mutation(
        gaussian.expected_distance,
        "times σ",
        lambda right: lambda length, std, dims: std * right(length, std, dims),
        ("Proof of Theorem 2, the sum of distances",),
    ),
    Mutation(gaussian.expected_distance, "+10 %", OFF, (SECOND,)),
    Mutation(
        gaussian.expected_distance,
        "as if F were 0",
        at_other(0, lambda length: 0 * length),
        (SECOND,),
    ),
    Mutation(_numerics.chi_mean, "+10 %", OFF, (FIRST, THIRD)),
    Mutation(
        _numerics.chi_mean,
        "dims + 1",
        at_other(0, lambda d: d + 1),
        (FIRST, "Lemma 3, Equation 31"),
    ),
    # the variance of the ratio of two criteria
    Mutation(pruning.l1_l2_ratio_variance, "exchanged", exchanged, (FIRST,)),
    Mutation(pruning.l1_l2_ratio_variance, "direct halved", shifted(direct=0.5), (FIRST,)),
    Mutation(pruning.l1_l2_ratio_variance, "inverse +10 %", shifted(inverse=1.1), (FIRST,)),
    Mutation(
        pruning.l1_l2_ratio_variance,
        "dims + 1",
        at_other(0, lambda d: d + 1),
        (FIRST, "Lemma 1, Equation 22"),
    ),
    Mutation(gaussian.l1_l2_ratio_variance_limit, "direct +10 %", shifted(direct=1.1), (FIRST,)),
    Mutation(gaussian.l1_l2_ratio_variance_limit, "exchanged", exchanged, (FIRST,)),
    Mutation(gaussian.norm_sum_ratio_variance, "exchanged", exchanged, (THIRD,)),
    Mutation(gaussian.norm_sum_ratio_variance, "direct +10 %", shifted(direct=1.1), (THIRD,)),
    Mutation(gaussian.norm_sum_ratio_variance, "inverse +10 %", shifted(inverse=1.1), (THIRD,)),
    Mutation(gaussian.norm_sum_ratio_variance, "n + 1", at_other(0, lambda n: n + 1), (THIRD,)),
    Mutation(
        gaussian.norm_sum_ratio_variance_limit,
        "halved",
        shifted(direct=0.5),
        (THIRD, "Equation 8, by Theorem 3"),
    ),
    Mutation(
        gaussian.norm_sum_ratio_variance_limit,
        "P never shared",
        option(shared=lambda shared: False),
        ("Equation 8, by Theorem 3",),
    ),
    # functions for rank correlations
    Mutation(pruning.l1_l2_correlation, "squared", squared, (RANKS,)),
    Mutation(pruning.l1_l2_correlation, "dims + 1", at_other(0, lambda d: d + 1), (RANKS,)),
    Mutation(pruning.l1_l2_correlation, "1", constant(1.0), (RANKS,)),
    Mutation(
        pruning.expected_spearman,
        "l1 for l2",
        lambda right: lambda n, d, pair: right(n, d, ("l2", "gm") if pair[0] == "l1" else pair),
        (RANKS,),
    ),
    Mutation(
        pruning.expected_spearman,
        "half the filters",
        at_other(0, lambda n: n / 2),
        ("Section 4.1 (2)",),
    ),
    Mutation(pruning.expected_spearman, "−2 %", times(0.98), (RANKS,)),
    Mutation(gaussian.expected_overlap, "+10 %", OFF, ("Equation 1",)),
    Mutation(
        gaussian.expected_overlap,
        "chance",
        lambda right: lambda n, d, pair, *, ratio: jnp.asarray(ratio),
        ("Equation 1",),
    ),
    Mutation(pruning.spearman, "Kendall's", kendall, (RANKS,)),
    Mutation(pruning.spearman, "Pearson's", pearson, (RANKS,)),
    Mutation(pruning.spearman, "1", constant(1.0), ("Section 3.2, approximately monotonic",)),
    Mutation(pruning.overlap, "one filter fewer", with_own, ("Equation 1",)),
    Mutation(pruning.overlap, "1", constant(1.0), ("Equation 1",)),
    Mutation(pruning.overlap, "at half the ratio", option(ratio=lambda p: p / 2), ("Equation 1",)),
    Mutation(
        ranking.chance_overlap, "mean halved", result(lambda x: (x[0] / 2, x[1])), ("Equation 1",)
    ),
    Mutation(
        ranking.chance_overlap,
        "standard deviation for variance",
        result(lambda x: (x[0], x[1] ** 0.5)),
        ("Equation 1",),
    ),
    Mutation(
        ranking.chance_overlap,
        "binomial",
        lambda right: lambda n, *, ratio: (ratio, (1 - ratio) / n),
        ("Equation 1",),
    ),
    Mutation(ranking.lowest, "the largest", largest, ("Section 1, filters and one-shot pruning",)),
    # criteria of pruning
    Mutation(pruning.geometric_median, "the centroid", centroid, (FILTERS,)),
    Mutation(pruning.geometric_median, "by coordinate", middle_by_coordinate, (FILTERS,)),
    Mutation(criteria.optimality_gap, "0", constant(0.0), (FILTERS,)),
    Mutation(criteria.optimality_gap, "+10⁻³", result(lambda x: x + 1e-3), (FILTERS,)),
    Mutation(criteria.scores, "l2 for l1", without_l1, (FILTERS,)),
    Mutation(criteria.scores, "squares in GM", with_squares, (FILTERS,)),
    Mutation(criteria.scores, "Fermat from the centroid", to_the_centroid, (FILTERS,)),
    Mutation(criteria.repr_score, "squared", squared, (SCORES,)),
    Mutation(criteria.repr_score, "with its own 1", result(lambda x: x + 1), (SCORES,)),
    Mutation(pruning.l1_norm, "l2", lambda right: pruning.l2_norm, (MOMENTS[0],)),
    Mutation(pruning.l1_norm, "+10 %", OFF, (MOMENTS[0],)),
    Mutation(pruning.l2_norm, "squared", squared, ("Theorem 5, item 1",)),
    Mutation(pruning.l2_norm, "+10 %", OFF, ("Theorem 5, item 1",)),
    Mutation(pruning.gm, "+10 %", OFF, ("Table 2 and its footnote",)),
    Mutation(pruning.gm, "not a number", times(float("nan")), ("Section 4.1 (2)",)),
    # statistical tests of weights
    Mutation(weight_tests.ks_distance, "+10 %", OFF, TESTS[:1]),
    Mutation(
        weight_tests.ks_distance,
        "one-sided",
        lambda right: (
            lambda x, *, scale=None: jnp.max(
                jnp.arange(1, x.size + 1) / x.size - 0.5 * jnp.ones_like(x)
            )
        ),
        TESTS[:1],
    ),
    Mutation(
        weight_tests.ks_distance,
        "scale always from the data",
        lambda right: lambda x, *, scale=None: right(x),
        TESTS[:1],
    ),
    Mutation(pruning.lilliefors, "other tail", other_tail, TESTS[:1]),
    Mutation(pruning.lilliefors, "never rejects", never, TESTS[:1]),
    Mutation(pruning.weight_tests.std_equivalence, "other tail", other_tail, TESTS[1:2]),
    Mutation(pruning.weight_tests.std_equivalence, "never rejects", never, TESTS[1:2]),
    Mutation(
        pruning.weight_tests.std_equivalence,
        "variance margin",
        option(margin=lambda m: m**2),
        TESTS[1:2],
    ),
    Mutation(pruning.std_homogeneity, "never rejects", never, TESTS[1:2]),
    Mutation(
        pruning.std_homogeneity,
        "p halved",
        lambda right: lambda v: TestResult(right(v)[0], right(v)[1] / 2),
        TESTS[1:2],
    ),
    Mutation(spread_and_mean.std_t_test, "other tail", other_tail, TESTS[1:2]),
    Mutation(spread_and_mean.std_t_test, "never rejects", never, TESTS[1:2]),
    Mutation(weight_tests.filter_stds, "dims in the denominator", of_other_variance, TESTS[1:2]),
    Mutation(weight_tests.filter_stds, "variances", squared, TESTS[1:2]),
    Mutation(pruning.mean_equivalence, "other tail", other_tail, TESTS[2:]),
    Mutation(pruning.mean_equivalence, "never rejects", never, TESTS[2:]),
    Mutation(
        pruning.mean_equivalence, "margin in variances", option(margin=lambda m: m**2), TESTS[2:]
    ),
    Mutation(weight_tests.covariance, "+10 %", OFF, ("Section 4.1 (3)",)),
    Mutation(
        weight_tests.covariance,
        "not centred",
        lambda right: lambda v: v @ v.T / (v.shape[1] - 1),
        ("Section 4.1 (3)",),
    ),
    # functions for the geometry of filters
    Mutation(welch_bound, "halved", times(0.5), ("Theorem 5, item 2",)),
    Mutation(welch_bound, "+10 %", OFF, ("Theorem 5, item 2",)),
    *(
        Mutation(gaussian_filter_geometry, f"{name} +10 %", shifted(**{name: 1.1}), (where,))
        for name, where in (
            ("norm_mean", "Theorem 5, item 1"),
            ("norm_variance", "Theorem 5, item 1"),
            ("cosine_variance", "Equations 85 to 88"),
            ("cosine_size", "Theorem 5, item 2"),
            ("angle_variance", "Theorem 5, item 2"),
            ("distance_mean", "Theorem 5, item 3, Figure 7"),
            ("distance_variance", "Theorem 5, item 3, Figure 7"),
        )
    ),
]


COMPUTED = [
    replace(claim, checks=tuple(part for part in claim.checks if isinstance(part, Computed)))
    for claim in PAPERS["cwda"]
]


@pytest.fixture
def optimized():
    """Run with XLA's optimizations, because draws then take a quarter of the time."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_wrong_function_is_noticed(mutation, monkeypatch, key):
    """Computed checks run first, because they take less time than sampled checks."""
    left = unnoticed(monkeypatch, mutation, COMPUTED, key)
    drawn = mutation._replace(claims=tuple(left))
    assert unnoticed(monkeypatch, drawn, PAPERS["cwda"], key, precision=1.5) == []
