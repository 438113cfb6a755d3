"""Which channels of which parameters are coupled, read off the program of any model."""
