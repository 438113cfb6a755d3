"""Compiled programs as they are read: memory traffic, kernels, collectives; nothing is run."""
