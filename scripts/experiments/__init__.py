"""The experiments that the scripts in the folder `scripts` run."""
