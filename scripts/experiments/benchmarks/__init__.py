"""Benchmarks: times and memory of programs on a device, beside their peers."""
