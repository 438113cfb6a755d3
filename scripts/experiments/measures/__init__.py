"""Measures: the quantities that commands compute for trained and random networks."""
