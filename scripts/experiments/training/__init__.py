"""Training: the code of the commands that train networks."""
