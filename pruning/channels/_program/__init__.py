"""Reads and evaluates traced programs: calls, lines of the model, and products with kernels."""
