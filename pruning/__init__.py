"""Which filters the criteria of pruning choose, how alike their choices are, and why.

Filters are the rows of a matrix, `(filters, dims)`; scores are one number a filter, and the
smallest are pruned first. Functions are pure and leave `jit`, `vmap` and `grad` to the caller.

On a mesh, Auto or Explicit, filters may be sharded along any axis. Their norms and standard
deviations stay where the filters are; what sorts or compares all filters, or all weights, returns
replicated results.
"""

from pruning import weights as weights
from pruning._channels import ChannelGroup as ChannelGroup
from pruning._channels import FixedChannels as FixedChannels
from pruning._channels import Position as Position
from pruning._checkpoint import Loaded as Loaded
from pruning._checkpoint import Pruned as Pruned
from pruning._checkpoint import load_pruned as load_pruned
from pruning._checkpoint import save_pruned as save_pruned
from pruning._choice import channel_scores as channel_scores
from pruning._choice import excluding as excluding
from pruning._choice import globally as globally
from pruning._choice import layerwise as layerwise
from pruning._cost import Cost as Cost
from pruning._cost import Timing as Timing
from pruning._cost import cost as cost
from pruning._coupling import coupled_channels as coupled_channels
from pruning._coupling import fixed_channels as fixed_channels
from pruning._covariance import Covariance as Covariance
from pruning._covariance import covariance as covariance
from pruning._covariance import covariance_report as covariance_report
from pruning._criteria import CRITERIA as CRITERIA
from pruning._criteria import fermat as fermat
from pruning._criteria import gm as gm
from pruning._criteria import l1_norm as l1_norm
from pruning._criteria import l2_norm as l2_norm
from pruning._criteria import repr_score as repr_score
from pruning._criteria import scores as scores
from pruning._filters import filter_matrix as filter_matrix
from pruning._folding import fold_constants as fold_constants
from pruning._gaussian import amoroso_moment as amoroso_moment
from pruning._gaussian import chi_moment as chi_moment
from pruning._gaussian import chi_variance as chi_variance
from pruning._gaussian import expected_distance as expected_distance
from pruning._gaussian import expected_overlap as expected_overlap
from pruning._gaussian import expected_spearman as expected_spearman
from pruning._gaussian import half_normal_moment as half_normal_moment
from pruning._gaussian import l1_l2_correlation as l1_l2_correlation
from pruning._ks import anderson_darling as anderson_darling
from pruning._ks import ks_bound as ks_bound
from pruning._ks import ks_distance as ks_distance
from pruning._ks import ks_equivalence as ks_equivalence
from pruning._ks import ks_normal as ks_normal
from pruning._ks import lilliefors as lilliefors
from pruning._median import geometric_median as geometric_median
from pruning._median import optimality_gap as optimality_gap
from pruning._prune import prune as prune
from pruning._ranking import kendall as kendall
from pruning._ranking import lowest as lowest
from pruning._ranking import order as order
from pruning._ranking import overlap as overlap
from pruning._ranking import spearman as spearman
from pruning._ratio_variances import l1_l2_ratio_variance as l1_l2_ratio_variance
from pruning._ratio_variances import l1_l2_ratio_variance_limit as l1_l2_ratio_variance_limit
from pruning._ratio_variances import norm_sum_ratio_variance as norm_sum_ratio_variance
from pruning._ratio_variances import norm_sum_ratio_variance_limit as norm_sum_ratio_variance_limit
from pruning._removal import mask_channels as mask_channels
from pruning._removal import remove_channels as remove_channels
from pruning._removal import widths as widths
from pruning._schedules import cubic as cubic
from pruning._schedules import geometric as geometric
from pruning._schedules import iterative as iterative
from pruning._schedules import linear as linear
from pruning._schedules import one_shot as one_shot
from pruning._similarity import PAIRS as PAIRS
from pruning._similarity import Similarity as Similarity
from pruning._similarity import chance_overlap as chance_overlap
from pruning._similarity import gaussian_similarity as gaussian_similarity
from pruning._similarity import permutation_p_value as permutation_p_value
from pruning._similarity import similarity as similarity
from pruning._similarity import spearman_z_score as spearman_z_score
from pruning._weight_tests import filter_stds as filter_stds
from pruning._weight_tests import holm as holm
from pruning._weight_tests import mean_equivalence as mean_equivalence
from pruning._weight_tests import mean_t_test as mean_t_test
from pruning._weight_tests import std_equivalence as std_equivalence
from pruning._weight_tests import std_homogeneity as std_homogeneity
from pruning._weight_tests import std_t_test as std_t_test
from pruning._weight_tests import symmetry as symmetry
