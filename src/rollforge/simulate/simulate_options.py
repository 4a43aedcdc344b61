"""Options of the simulated model and its server."""

from __future__ import annotations

import contextlib
import ipaddress

import msgspec

from rollforge.errors import UsageError
from rollforge.simulate.dialects import dialect_of
from rollforge.simulate.faults import parse_fault

_NEVER_NEGATIVE = (
    "latency",
    "latency_spread",
    "tokens_per_second",
    "capacity",
    "rate_limit",
    "rpm",
    "kv_tokens",
    "kv_requests",
    "kv_speed",
    "tpm",
    "answer_tokens",
)


class SimulateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of the simulated model. All randomness is seeded."""

    host: str = "127.0.0.1"
    """Address to listen on; must be loopback."""
    port: int = 0
    """0 takes any free port."""
    seed: int = 0
    models: tuple[str, ...] = ()
    """Names of the models; by default `simulated`, and every requested name is accepted."""
    strict_model: bool | None = None
    """Answer 404 for other names; by default only if `models` are given."""
    api_key: str | None = None
    """If set, requests without this bearer key get a 401."""
    skill: float = 0.5
    """Share of the tasks that it tends to solve, from 0 to 1."""
    answer_tokens: float = 60.0
    """Median length of an answer."""
    reasoning: float = 0.3
    """Share of answers that start with reasoning; all, if the request sets a reasoning effort."""
    context_tokens: int = 131_072
    """Limit on prompt plus answer, in tokens."""
    latency: float = 0.0
    """Median seconds until an answer."""
    latency_spread: float = 0.3
    """Standard deviation of the logarithm of the latency."""
    tokens_per_second: float = 0.0
    """Generation speed, which adds to the latency; 0 = off."""
    capacity: int = 0
    """Requests served at once; others queue; 0 = no bound."""
    rate_limit: float = 0.0
    """Requests per second beyond which it answers 429; 0 = no bound."""
    rpm: float = 0.0
    """Requests a minute and key, enforced and announced in headers; 0 = no bound."""
    tpm: float = 0.0
    """Tokens a minute and key; 0 = no bound."""
    rate_headers: str = "openai"
    """Format of the rate-limit headers: `openai`, `anthropic` or `none`."""
    kv_tokens: int = 0
    """Size in tokens of a KV cache shared by running requests, with queue, preemption and `/metrics`; 0 = off."""
    kv_requests: int = 256
    """With `kv_tokens`: requests that run at once."""
    kv_speed: float = 4000.0
    """With `kv_tokens`: tokens a second that very many requests generate together."""
    metrics: str = "vllm"
    """Metric names on `/metrics`: `vllm` or `sglang`."""
    faults: tuple[str, ...] = ()
    """Values of `--fault`."""
    dialect: str = "openai"
    """Server to imitate: `openai`, `llama.cpp`, `transformers-serve`, `vllm`."""

    @property
    def is_strict(self) -> bool:
        """Whether an unknown model name is an error."""
        if self.strict_model is None:
            return bool(self.models) or self.dialect == "vllm"
        return self.strict_model

    @property
    def served_models(self) -> tuple[str, ...]:
        """Model names in `GET /v1/models`."""
        return self.models or (dialect_of(self.dialect).default_model or "simulated",)

    def check(self) -> None:
        """Refuse impossible values before anything starts."""
        check_loopback(self.host)
        dialect_of(self.dialect)
        for spec in self.faults:
            parse_fault(spec)
        for name in ("skill", "reasoning"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(
                    f"{name} lies between 0 and 1, not {getattr(self, name):g}",
                    hint=f"for example {name}=0.1",
                )
        for name in _NEVER_NEGATIVE:
            if getattr(self, name) < 0:
                raise UsageError(
                    f"{name} cannot be negative, not even {getattr(self, name):g}",
                    hint=f"for example {name}=0",
                )


def check_loopback(host: str) -> None:
    """Refuse to listen on any address but loopback."""
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise UsageError(
        f"the simulated model is served on loopback only, not on {host}",
        hint="use --host 127.0.0.1 (or leave it out)",
    )
