"""Theory of Gaussian filters: moments, variances of ratios, and correlations between criteria.

Further functions give the correlation of l1 and l2 if weights are not Gaussian and filters have
different scales.
"""

from pruning.gaussian._expected_similarity import (
    expected_overlap as expected_overlap,
    expected_spearman as expected_spearman,
    l1_l2_correlation as l1_l2_correlation,
)
from pruning.gaussian._moments import (
    amoroso_moment as amoroso_moment,
    chi_moment as chi_moment,
    chi_variance as chi_variance,
    expected_distance as expected_distance,
    half_normal_moment as half_normal_moment,
)
from pruning.gaussian._ratios import (
    RatioVariances as RatioVariances,
    l1_l2_ratio_variance as l1_l2_ratio_variance,
    l1_l2_ratio_variance_limit as l1_l2_ratio_variance_limit,
    norm_sum_ratio_variance as norm_sum_ratio_variance,
    norm_sum_ratio_variance_limit as norm_sum_ratio_variance_limit,
)
from pruning.gaussian._scaled_filters import (
    FilterModel as FilterModel,
    fit_filter_model as fit_filter_model,
    normal_kendall as normal_kendall,
    normal_overlap as normal_overlap,
    normal_spearman as normal_spearman,
    scaled_l1_l2_correlation as scaled_l1_l2_correlation,
)

__all__ = [
    "FilterModel",
    "RatioVariances",
    "amoroso_moment",
    "chi_moment",
    "chi_variance",
    "expected_distance",
    "expected_overlap",
    "expected_spearman",
    "fit_filter_model",
    "half_normal_moment",
    "l1_l2_correlation",
    "l1_l2_ratio_variance",
    "l1_l2_ratio_variance_limit",
    "norm_sum_ratio_variance",
    "norm_sum_ratio_variance_limit",
    "normal_kendall",
    "normal_overlap",
    "normal_spearman",
    "scaled_l1_l2_correlation",
]
