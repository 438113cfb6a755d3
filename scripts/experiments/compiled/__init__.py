"""Reads memory traffic, kernels and collectives from compiled programs, which are not run."""
