"""The one HTTP client: pools, bounded retries with a shared budget, a breaker per endpoint, adaptive concurrency, size limits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollforge.endpoint.bodies import (
        MAX_RESPONSE_BYTES,
        LargeSlots,
        open_session,
        read_body,
        read_error_body,
    )
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

_MODULE_OF = {
    "HIGHEST": "limiter", "MAX_RESPONSE_BYTES": "bodies", "MOST_TOKENS": "mending", "Client": "client", "ClientOptions": "client",
    "ConcurrencyRange": "limiter", "LargeSlots": "bodies", "Limiter": "limiter", "Model": "model", "ModelOptions": "model",
    "open_session": "bodies", "proxy_for": "proxies", "read_body": "bodies", "read_error_body": "bodies",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a part on use: prices need no HTTP client."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rollforge.endpoint.{_MODULE_OF[name]}"), name)
