"""NeMo Gym's servers, for the agents that play their rollouts: finding a server, its rows and JSON, one session per rollout."""
