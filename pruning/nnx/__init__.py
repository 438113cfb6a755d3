"""Prunes models of `flax.nnx`: the functions take a model and return a smaller model."""

from pruning.nnx._prune import evaluation as evaluation
from pruning.nnx._prune import load_pruned as load_pruned
from pruning.nnx._prune import prune as prune

__all__ = [
    "evaluation",
    "load_pruned",
    "prune",
]
