"""Benchmarks: times and memory of our programs on a device, compared with other libraries."""
