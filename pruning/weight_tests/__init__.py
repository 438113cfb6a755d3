"""Tests the assumption that filters are independent draws from N(0, c² I).

Each test returns a statistic and its p-value. If a test does not need whole filters, the array of
weights may have any shape.
"""

from pruning.weight_tests._generalized import GeneralizedGaussian as GeneralizedGaussian
from pruning.weight_tests._generalized import (
    fit_generalized_gaussian as fit_generalized_gaussian,
)
from pruning.weight_tests._generalized import ks_generalized_gaussian as ks_generalized_gaussian
from pruning.weight_tests._ks import anderson_darling as anderson_darling
from pruning.weight_tests._ks import ks_bound as ks_bound
from pruning.weight_tests._ks import ks_distance as ks_distance
from pruning.weight_tests._ks import ks_equivalence as ks_equivalence
from pruning.weight_tests._ks import ks_normal as ks_normal
from pruning.weight_tests._ks import lilliefors as lilliefors
from pruning.weight_tests._weight_tests import Covariance as Covariance
from pruning.weight_tests._weight_tests import TestResult as TestResult
from pruning.weight_tests._weight_tests import covariance as covariance
from pruning.weight_tests._weight_tests import covariance_report as covariance_report
from pruning.weight_tests._weight_tests import filter_stds as filter_stds
from pruning.weight_tests._weight_tests import holm as holm
from pruning.weight_tests._weight_tests import mean_equivalence as mean_equivalence
from pruning.weight_tests._weight_tests import std_equivalence as std_equivalence
from pruning.weight_tests._weight_tests import std_homogeneity as std_homogeneity
from pruning.weight_tests._weight_tests import symmetry as symmetry

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
