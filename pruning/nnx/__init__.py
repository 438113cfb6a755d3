"""Models of `flax.nnx` pruned as models: one goes in, a smaller one is returned."""

from pruning.nnx._prune import evaluation as evaluation
from pruning.nnx._prune import load_pruned as load_pruned
from pruning.nnx._prune import prune as prune

__all__ = [
    "evaluation",
    "load_pruned",
    "prune",
]
