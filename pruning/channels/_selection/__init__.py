"""Scores channels, and chooses the channels to keep by their scores."""
