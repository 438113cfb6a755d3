"""Train networks by recipes, for the scripts of the folder `scripts`."""
