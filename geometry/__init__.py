"""Geometry of representations."""
