"""Training: what the commands that train networks run."""
