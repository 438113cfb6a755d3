"""Prunes models of `flax.nnx`."""

from pruning.nnx._prune import evaluation as evaluation
from pruning.nnx._prune import load_pruned as load_pruned
from pruning.nnx._prune import prune as prune

__all__ = [
    "evaluation",
    "load_pruned",
    "prune",
]
