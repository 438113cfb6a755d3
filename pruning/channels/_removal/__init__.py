"""Removes channels from the arrays of a model, and runs, compares and saves the smaller model."""
