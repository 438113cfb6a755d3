"""Measures: what the commands compute of trained networks, weight files and random networks."""
