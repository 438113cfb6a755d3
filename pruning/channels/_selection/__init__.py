"""Scores channels, and chooses channels by scores."""
