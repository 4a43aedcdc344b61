"""Benchmarks: ratios against a peer's method or a floor, measured in one run on one machine."""
