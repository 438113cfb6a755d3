"""The recentering tree: its layers, its Gram matrix at any depth, and its infinite-depth limit."""

from geometry.tree._limits import EndBounds as EndBounds
from geometry.tree._limits import TreeLimits as TreeLimits
from geometry.tree._limits import depth_bound as depth_bound
from geometry.tree._limits import end_bounds as end_bounds
from geometry.tree._limits import limit_ratio as limit_ratio
from geometry.tree._limits import limits as limits
from geometry.tree._tree import TreeGram as TreeGram
from geometry.tree._tree import neurons as neurons
from geometry.tree._tree import step as step
from geometry.tree._tree import tree_gram as tree_gram
