"""Reads and evaluates traced programs: calls, lines of the model's code, products with kernels."""
