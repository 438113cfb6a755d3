"""The recentering tree, with its layers, its Gram matrix at any depth, and its limit."""

from geometry.tree._limits import (
    EndBounds as EndBounds,
    TreeLimits as TreeLimits,
    depth_bound as depth_bound,
    end_bounds as end_bounds,
    limit_ratio as limit_ratio,
    limits as limits,
)
from geometry.tree._tree import (
    TreeGram as TreeGram,
    neurons as neurons,
    step as step,
    tree_gram as tree_gram,
)
