"""Benchmarks that compare the time and memory of our functions with those of other libraries."""
