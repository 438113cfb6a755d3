"""Removes channels from the arrays of a model; runs, compares and saves the smaller program."""
