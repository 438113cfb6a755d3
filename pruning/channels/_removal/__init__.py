"""Channels removed from the arrays of a model, and the smaller program run, compared and saved."""
