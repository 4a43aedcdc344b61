"""Collects through batches at a provider: request files, rounds until nothing is owed, results converted to rollouts."""
