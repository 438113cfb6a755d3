"""Traced programs: calls, lines in the model, interpretation and products."""
