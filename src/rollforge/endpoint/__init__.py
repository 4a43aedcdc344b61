"""The one HTTP client: pools, bounded retries with a shared budget, a breaker per endpoint, adaptive concurrency, size limits."""

from rollforge.endpoint.bodies import MAX_RESPONSE_BYTES, LargeSlots, open_session, read_body, read_error_body
from rollforge.endpoint.client import Client, ClientOptions
from rollforge.endpoint.limiter import HIGHEST, ConcurrencyRange, Limiter
from rollforge.endpoint.mending import MOST_TOKENS
from rollforge.endpoint.model import Model, ModelOptions
from rollforge.endpoint.proxies import proxy_for

__all__ = [
    "HIGHEST",
    "MAX_RESPONSE_BYTES",
    "MOST_TOKENS",
    "Client",
    "ClientOptions",
    "ConcurrencyRange",
    "LargeSlots",
    "Limiter",
    "Model",
    "ModelOptions",
    "open_session",
    "proxy_for",
    "read_body",
    "read_error_body",
]
