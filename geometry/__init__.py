"""Geometry of representations, to see how random layers change angles and norms of a batch.

Samples are the rows of an array `x`. Angles are in radians. Functions are pure and leave `jit`,
`vmap` and `grad` to the caller. The most used functions can be imported from the package
`geometry`. All functions of a topic are in a namespace:

- `networks`: batches in random networks, and neurons that are active for one sample.
- `mean_field`: layers of infinite width, which are maps from Gram matrices to Gram matrices.
- `tree`: the recentering tree, a deterministic model of recentering and ReLU, at any depth and in
  the limit of infinite depth.
- `odd_points`: odd points, which are samples that recentering and ReLU drive away from all other
  samples, and invariant representations.
- `cells`: sets of Gaussian neurons that are active on the same samples, and γ, the smallest
  positive probability of such a set.
- `ranks`: ranks of a batch, and how many neurons give a batch full rank.
- `filters`: lengths, angles and distances of the filters of a layer.
- `sampling`: Monte Carlo estimates with their standard errors.
- `claims`: claims of papers, checked in computed cases or by Monte Carlo; this namespace is
  imported at its first use.
"""

import typing

from jaxnorm import __version__ as __version__  # isort: split

from geometry import (
    cells as cells,
    filters as filters,
    mean_field as mean_field,
    networks as networks,
    odd_points as odd_points,
    ranks as ranks,
    sampling as sampling,
    tree as tree,
)
from geometry._angles import angles as angles, distances as distances, gram as gram
from geometry.cells import cell_volumes_2d as cell_volumes_2d, gamma_2d as gamma_2d
from geometry.filters import FilterGeometry as FilterGeometry, filter_geometry as filter_geometry
from geometry.mean_field import (
    arccosine_kernel as arccosine_kernel,
    mean_field_step as mean_field_step,
)
from geometry.networks import RandomNetwork as RandomNetwork, random_network as random_network
from geometry.odd_points import (
    OddPoint as OddPoint,
    invariant_representation as invariant_representation,
    is_invariant as is_invariant,
    is_odd as is_odd,
    odd_point as odd_point,
)
from geometry.ranks import (
    effective_rank as effective_rank,
    isometry_gap as isometry_gap,
    numerical_rank as numerical_rank,
    orthogonality_gap as orthogonality_gap,
    rank_tail_bound as rank_tail_bound,
    stable_rank as stable_rank,
)
from geometry.sampling import Estimate as Estimate, monte_carlo as monte_carlo
from geometry.tree import TreeGram as TreeGram, tree_gram as tree_gram
from jaxnorm.internal import lazy_modules

if typing.TYPE_CHECKING:
    from geometry import claims as claims
else:  # type checkers must not see `__getattr__`, or they would accept any name
    __getattr__, __dir__ = lazy_modules(__name__, {"claims": "geometry.claims"})
