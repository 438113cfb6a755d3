"""Computes the cost of a network for any widths of its layers."""
