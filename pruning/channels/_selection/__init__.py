"""Scores of channels, and the choice of channels by scores."""
