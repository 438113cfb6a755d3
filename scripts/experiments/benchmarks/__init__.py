"""Benchmarks: what programs cost, timed on a device beside their peers."""
