"""Benchmarks that compare the time and memory of our functions with other libraries' functions."""
