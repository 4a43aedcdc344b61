"""Shared parts of checks: the evidence of a run, text samples, probabilities, findings, and detectors for live runs."""
