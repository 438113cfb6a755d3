"""The code of the commands that train networks."""
