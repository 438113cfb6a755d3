"""Compute the quantities that scripts measure on trained and random networks."""
