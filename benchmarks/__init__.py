"""Benchmarks: what users feel, as ratios in one run against a peer or a floor. Absolute times mean nothing on shared machines."""
