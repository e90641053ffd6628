"""Benchmarks: `python -m benchmarks.NAME` compares implementations in one process or in turns."""
