"""What checks are built from: the evidence of a run, samples of its text, chance, findings, and detectors for live runs."""
