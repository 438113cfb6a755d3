"""Prunes models of `flax.nnx`."""

from pruning.nnx._prune import evaluation as evaluation, load_pruned as load_pruned, prune as prune

__all__ = ["evaluation", "load_pruned", "prune"]
