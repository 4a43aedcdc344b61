"""Collect by batches at a provider: requests in files, rounds until nothing is owed, results made into rollouts."""
