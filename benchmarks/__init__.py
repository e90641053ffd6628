"""Benchmarks: `python -m benchmarks.NAME` compares the speed or the results of implementations."""
