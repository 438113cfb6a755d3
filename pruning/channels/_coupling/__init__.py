"""Finds which channels of which parameters are coupled, from the traced program of a model."""
