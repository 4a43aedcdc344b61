"""Human review of verdicts: which rollouts look suspicious, and the labels that people give."""
