"""Rate limits per key, enforced with 429 and announced in the headers of every answer, as OpenAI or Anthropic does."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from rollforge.simulate.wire import HttpRequest

Headers = tuple[tuple[str, str], ...]
Levels = dict[str, float]


class RateDesk:
    """Token buckets of every key for requests and tokens per minute."""

    def __init__(self, rpm: float, tpm: float, style: str, clock: Callable[[], float]) -> None:
        self._limits = {name: limit for name, limit in (("requests", rpm), ("tokens", tpm)) if limit}
        self._style = style
        self._clock = clock
        self._levels: dict[str, tuple[float, Levels]] = {}

    @property
    def is_open(self) -> bool:
        """Whether no limit is configured."""
        return not self._limits

    def admit(self, request: HttpRequest, tokens: int) -> tuple[bool, Headers]:
        """Whether the request is within its key's limits, and the rate-limit headers of its answer."""
        if self.is_open:
            return True, ()
        key = request.headers.get("authorization") or request.headers.get("x-api-key", "")
        now = self._clock()
        at, levels = self._levels.get(key, (now, dict(self._limits)))
        for name, limit in self._limits.items():
            levels[name] = min(limit, levels[name] + (now - at) * limit / 60)
        amounts = {"requests": 1.0, "tokens": float(tokens)}
        # More than a whole minute's tokens pass when the bucket is full: else they never would.
        lacking = {
            name: min(amounts[name], limit) - levels[name]
            for name, limit in self._limits.items()
            if min(amounts[name], limit) > levels[name] + 1e-9
        }
        if not lacking:
            for name in self._limits:
                levels[name] -= amounts[name]
        self._levels[key] = (now, levels)
        headers = self._headers(levels)
        if lacking:
            wait = max(amount / (self._limits[name] / 60) for name, amount in lacking.items())
            headers += (("Retry-After", f"{wait:.3f}"),)
        return not lacking, headers

    def _headers(self, levels: Levels) -> Headers:
        if self._style == "none":
            return ()
        headers: list[tuple[str, str]] = []
        for name, limit in self._limits.items():
            left, reset = max(0, int(levels[name])), (limit - levels[name]) / (limit / 60)
            if self._style == "anthropic":
                at = datetime.datetime.fromtimestamp(time.time() + reset, datetime.UTC)
                values = (("limit", f"{limit:.0f}"), ("remaining", str(left)), ("reset", at.isoformat()))
                headers += [(f"anthropic-ratelimit-{name}-{part}", value) for part, value in values]
            else:
                values = (("limit", f"{limit:.0f}"), ("remaining", str(left)), ("reset", f"{reset:.3f}s"))
                headers += [(f"x-ratelimit-{part}-{name}", value) for part, value in values]
        return tuple(headers)
