"""Penstock beside other job queues: `make bench-peers`, or `python -m benchmarks.peers --help`."""
