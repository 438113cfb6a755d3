"""Benchmarks: what programs cost, timed on a device or read from compiled text."""
