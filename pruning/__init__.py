"""Criteria for pruning filters, similarities of their rankings, and the removal of channels.

Filters are the rows of a matrix of shape `(filters, dims)`. A criterion gives each filter one
score, and the filters with the smallest scores are pruned first. Functions are pure, so you can
apply `jit`, `vmap` and `grad` to all functions except those that run on the host, such as `prune`.

On a mesh with Auto or Explicit axes, filters may be sharded along any axis. Arrays of norms and of
standard deviations are sharded in the same way as the filters. Results of functions that sort or
compare all filters, or all weights, are replicated on all devices.

The functions that most users need can be imported from the package `pruning`. All functions are in
the namespaces `criteria`, `ranking`, `gaussian`, `weight_tests`, `channels`, `nnx`, `schedules` and
`weights`.
"""

import typing

from jaxnorm import __version__ as __version__  # isort: split

from pruning import (
    channels as channels,
    criteria as criteria,
    gaussian as gaussian,
    nnx as nnx,
    ranking as ranking,
    schedules as schedules,
    weight_tests as weight_tests,
    weights as weights,
)
from pruning.channels import (
    ChannelGroup as ChannelGroup,
    Pruned as Pruned,
    cost as cost,
    coupled_channels as coupled_channels,
    least_squares as least_squares,
    load_pruned as load_pruned,
    mask_channels as mask_channels,
    prune as prune,
    remove_channels as remove_channels,
    resized as resized,
    save_pruned as save_pruned,
    select_globally as select_globally,
    select_within as select_within,
    widths_for as widths_for,
)
from pruning.criteria import (
    CRITERIA as CRITERIA,
    fermat as fermat,
    filter_matrix as filter_matrix,
    geometric_median as geometric_median,
    gm as gm,
    l1_norm as l1_norm,
    l2_norm as l2_norm,
)
from pruning.gaussian import (
    expected_spearman as expected_spearman,
    l1_l2_correlation as l1_l2_correlation,
    l1_l2_ratio_variance as l1_l2_ratio_variance,
)
from pruning.ranking import (
    kendall as kendall,
    order as order,
    overlap as overlap,
    spearman as spearman,
)
from pruning.weight_tests import (
    ks_normal as ks_normal,
    lilliefors as lilliefors,
    mean_equivalence as mean_equivalence,
    std_homogeneity as std_homogeneity,
)

__all__ = [
    "CRITERIA",
    "ChannelGroup",
    "Pruned",
    "channels",
    "cost",
    "coupled_channels",
    "criteria",
    "expected_spearman",
    "fermat",
    "filter_matrix",
    "gaussian",
    "geometric_median",
    "gm",
    "kendall",
    "ks_normal",
    "l1_l2_correlation",
    "l1_l2_ratio_variance",
    "l1_norm",
    "l2_norm",
    "least_squares",
    "lilliefors",
    "load_pruned",
    "mask_channels",
    "mean_equivalence",
    "nnx",
    "order",
    "overlap",
    "prune",
    "ranking",
    "remove_channels",
    "resized",
    "save_pruned",
    "schedules",
    "select_globally",
    "select_within",
    "spearman",
    "std_homogeneity",
    "weight_tests",
    "weights",
    "widths_for",
]

# Names that can be imported from `pruning`, but are documented only in their namespaces.
_ELSEWHERE = {
    **dict.fromkeys(("amoroso_moment", "chi_moment", "half_normal_moment"), gaussian),
    **dict.fromkeys(
        ("anderson_darling", "ks_equivalence", "std_equivalence", "symmetry"), weight_tests
    ),
}

# Type checkers must not see `__getattr__`, or they would accept any attribute of `pruning`.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        if name in _ELSEWHERE:
            return getattr(_ELSEWHERE[name], name)
        raise AttributeError(f"module 'pruning' has no attribute {name!r}")
