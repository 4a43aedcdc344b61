"""Client for NeMo Gym servers: finds a server, converts rows and JSON, holds one session per rollout."""
