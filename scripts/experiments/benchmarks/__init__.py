"""Benchmarks: times and memory of our programs on a device, beside those of other libraries."""
