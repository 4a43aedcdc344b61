"""The one HTTP client: pools, bounded retries with a shared budget, a breaker per endpoint, adaptive concurrency, size limits."""

from rollforge.endpoint.answers import MOST_TOKENS
from rollforge.endpoint.bodies import LargeSlots, read_body, read_error_body
from rollforge.endpoint.client import Client, ClientOptions
from rollforge.endpoint.limiter import HIGHEST, ConcurrencyRange, Limiter
from rollforge.endpoint.model import Model, ModelOptions

__all__ = [
    "HIGHEST",
    "MOST_TOKENS",
    "Client",
    "ClientOptions",
    "ConcurrencyRange",
    "LargeSlots",
    "Limiter",
    "Model",
    "ModelOptions",
    "read_body",
    "read_error_body",
]
