"""The one HTTP client: pools, bounded retries with a shared budget, a breaker per endpoint, adaptive concurrency."""

from rollforge.endpoint.client import Client, ClientOptions
from rollforge.endpoint.limiter import ConcurrencyRange, Limiter
from rollforge.endpoint.model import Model, ModelOptions

__all__ = ["Client", "ClientOptions", "ConcurrencyRange", "Limiter", "Model", "ModelOptions"]
