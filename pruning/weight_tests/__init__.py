"""Tests the assumption that filters are independent draws from N(0, c² I).

Each test returns a statistic and its p-value. Tests of single weights take an array of any shape.
"""

from pruning.weight_tests._generalized import (
    GeneralizedGaussian as GeneralizedGaussian,
    fit_generalized_gaussian as fit_generalized_gaussian,
    ks_generalized_gaussian as ks_generalized_gaussian,
)
from pruning.weight_tests._ks import (
    anderson_darling as anderson_darling,
    ks_bound as ks_bound,
    ks_distance as ks_distance,
    ks_equivalence as ks_equivalence,
    ks_normal as ks_normal,
    lilliefors as lilliefors,
)
from pruning.weight_tests._weight_tests import (
    Covariance as Covariance,
    TestResult as TestResult,
    covariance as covariance,
    covariance_report as covariance_report,
    filter_stds as filter_stds,
    holm as holm,
    mean_equivalence as mean_equivalence,
    std_equivalence as std_equivalence,
    std_homogeneity as std_homogeneity,
    symmetry as symmetry,
)

__all__ = [
    "Covariance",
    "GeneralizedGaussian",
    "TestResult",
    "anderson_darling",
    "covariance",
    "covariance_report",
    "filter_stds",
    "fit_generalized_gaussian",
    "holm",
    "ks_bound",
    "ks_distance",
    "ks_equivalence",
    "ks_generalized_gaussian",
    "ks_normal",
    "lilliefors",
    "mean_equivalence",
    "std_equivalence",
    "std_homogeneity",
    "symmetry",
]
