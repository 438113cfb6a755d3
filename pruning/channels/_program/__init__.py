"""Traced programs: their calls, their lines in the model, how to interpret them, and products."""
