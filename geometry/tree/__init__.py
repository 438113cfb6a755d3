"""The recentering tree: its layers, its Gram matrix at any depth, and where it ends."""

from geometry.tree._limits import EndBounds as EndBounds
from geometry.tree._limits import TreeLimits as TreeLimits
from geometry.tree._limits import end_bounds as end_bounds
from geometry.tree._limits import printed_end_bounds as printed_end_bounds
from geometry.tree._limits import tree_depth_bound as tree_depth_bound
from geometry.tree._limits import tree_limit_ratio as tree_limit_ratio
from geometry.tree._limits import tree_limits as tree_limits
from geometry.tree._tree import TreeGram as TreeGram
from geometry.tree._tree import tree as tree
from geometry.tree._tree import tree_gram as tree_gram
from geometry.tree._tree import tree_step as tree_step
