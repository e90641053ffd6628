"""Benchmarks: ratios measured side by side, `python -m benchmarks.NAME`."""
