"""Prunes models of `flax.nnx`: takes a model, returns a smaller one."""

from pruning.nnx._prune import evaluation as evaluation
from pruning.nnx._prune import load_pruned as load_pruned
from pruning.nnx._prune import prune as prune

__all__ = [
    "evaluation",
    "load_pruned",
    "prune",
]
