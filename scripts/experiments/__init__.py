"""The experiments that the commands in `scripts` run."""
