"""Penstock beside the raw store: `python -m benchmarks --help`."""
