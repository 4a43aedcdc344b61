"""Rate limits of a provider: token buckets for requests and tokens per minute, from flags and from the headers of its answers.

A request is charged in advance for its expected tokens: its prompt, and an answer of the mean length so far. Its answer then
corrects the charge to the actual usage. Each endpoint and key has its own limits. The caller passes the time and sleeps.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Literal

from rollforge.endpoint.prices import TokenUsage

LimitKind = Literal["requests", "tokens"]
KINDS: tuple[LimitKind, LimitKind] = ("requests", "tokens")
LimitName = Literal["requests", "tokens", "--rpm", "--tpm"]
"""What a request waits for: a limit of the provider by its kind, or one of the user's own by its flag."""
OWN_LIMITS: dict[LimitKind, LimitName] = {"requests": "--rpm", "tokens": "--tpm"}

FIRST_OUTPUT = 256.0
"""Expected output tokens before the first answer."""
FIRST_BYTES_PER_TOKEN = 4.0
LEARNING = 0.1
LONGEST_RESET_S = 24 * 3600.0
_FIRST_TIME = 1e9
"""Values from here on are Unix timestamps in seconds or milliseconds, smaller ones are durations."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Bucket:
    """Token bucket: holds up to a burst of requests or tokens, and refills at a constant rate."""

    def __init__(
        self, capacity: float, per_second: float, *, level: float | None = None, now: float = 0.0
    ) -> None:
        self.capacity = capacity
        self.per_second = per_second
        self._level = capacity if level is None else level
        self._at = now

    def level(self, now: float) -> float:
        """Current content of the bucket; negative when more was used than planned."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.per_second)
        self._at = max(self._at, now)
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is available; an amount larger than the bucket waits until the bucket is full."""
        lacking = min(amount, self.capacity) - self.level(now)
        if lacking <= 1e-9:
            return 0.0
        return lacking / self.per_second if self.per_second > 0 else LONGEST_RESET_S

    def take(self, amount: float, now: float) -> None:
        """Take an amount; a negative amount is returned to the bucket."""
        self._level = min(self.capacity, self.level(now) - amount)

    def observe(self, limit: float, remaining: float, reset_s: float, now: float) -> None:
        """Apply the provider's remaining count. It does not include requests in flight, so the lower of both counts is used."""
        self.capacity = max(limit, 1.0)
        missing = max(0.0, limit - remaining)
        if reset_s > 0 and missing:
            self.per_second = missing / reset_s
        elif not self.per_second:
            self.per_second = limit / 60
        self._level = min(self.level(now), remaining)


class RateLimits:
    """The limits of one endpoint and key."""

    def __init__(self, *, rpm: float | None = None, tpm: float | None = None) -> None:
        self._own: dict[LimitKind, Bucket | None] = {
            "requests": None if rpm is None else Bucket(_burst(rpm), rpm / 60),
            "tokens": None if tpm is None else Bucket(_burst(tpm), tpm / 60),
        }
        self._said: dict[LimitKind, Bucket | None] = {"requests": None, "tokens": None}

    def wait_s(self, tokens: float, now: float) -> tuple[float, LimitName | None]:
        """Seconds until a request with this number of tokens may be sent, and which limit it waits for."""
        longest: float = 0.0
        reason: LimitName | None = None
        for kind, bucket in self._buckets():
            wait = bucket.wait_s(1.0 if kind == "requests" else tokens, now)
            if wait > longest:
                longest, reason = wait, OWN_LIMITS[kind] if bucket is self._own[kind] else kind
        return longest, reason

    def take(self, tokens: float, now: float) -> None:
        """Charge a request for its expected tokens."""
        for kind, bucket in self._buckets():
            bucket.take(1.0 if kind == "requests" else tokens, now)

    def correct(self, expected: float, used: float, now: float) -> None:
        """Correct a request's charge to its actual tokens."""
        for kind, bucket in self._buckets():
            if kind == "tokens":
                bucket.take(used - expected, now)

    def observe(self, headers: Mapping[str, str], now: float, clock: float) -> None:
        """Read an answer's rate-limit headers; `clock` is the time of day, for providers that send reset times as dates."""
        for kind in KINDS:
            limit = read_limit(headers, kind, clock)
            if limit is None:
                continue
            bucket = self._said[kind]
            if bucket is None:
                bucket = self._said[kind] = Bucket(limit[0], 0.0, level=limit[1], now=now)
            bucket.observe(*limit, now)

    def limit(self, kind: LimitKind) -> float | None:
        """The limit per minute for display; None without a limit."""
        buckets = [bucket for name, bucket in self._buckets() if name == kind]
        return min((bucket.per_second * 60 for bucket in buckets), default=None)

    def _buckets(self) -> list[tuple[LimitKind, Bucket]]:
        buckets: list[tuple[LimitKind, Bucket]] = []
        for kind in KINDS:
            buckets += [
                (kind, bucket) for bucket in (self._own[kind], self._said[kind]) if bucket is not None
            ]
        return buckets


class ExpectedTokens:
    """Predicts a request's tokens from earlier answers."""

    def __init__(self) -> None:
        self._output = FIRST_OUTPUT
        self._bytes_per_token = FIRST_BYTES_PER_TOKEN
        self._has_seen = False

    def of(self, body: bytes) -> float:
        """Expected tokens of a request with this body."""
        return len(body) / self._bytes_per_token + self._output

    def learn(self, body: bytes, answer: object) -> float | None:
        """Learn from an answer's usage and return its tokens; None if the server did not count."""
        usage = TokenUsage.read(answer.get("usage")) if isinstance(answer, dict) else None
        if usage is None:
            return None
        weight = LEARNING if self._has_seen else 1.0
        self._has_seen = True
        self._output += weight * (usage.output - self._output)
        if usage.input:
            self._bytes_per_token += weight * (len(body) / usage.input - self._bytes_per_token)
        return float(usage.input + usage.output)


def read_limit(
    headers: Mapping[str, str], kind: LimitKind, clock: float
) -> tuple[float, float, float] | None:
    """Limit, remaining amount, and seconds until full; None if the headers have no limit."""
    for limit, remaining, reset in (
        (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}"),
        (
            f"anthropic-ratelimit-{kind}-limit",
            f"anthropic-ratelimit-{kind}-remaining",
            f"anthropic-ratelimit-{kind}-reset",
        ),
    ):
        most, left = _number(headers.get(limit)), _number(headers.get(remaining))
        if (
            most is not None and left is not None and most >= 1
        ):  # 0 says that nothing is limited: an answer came
            return most, left, reset_s(headers.get(reset, ""), clock)
    return None


def reset_s(text: str, clock: float) -> float:
    """Parse `6m0s`, `20ms`, `12`, a date or a Unix timestamp as seconds from now; 0 if invalid."""
    number = _number(text)
    if number is not None and number > _FIRST_TIME:
        number = max(0.0, (number if number < 1000 * _FIRST_TIME else number / 1000) - clock)
    if number is not None:
        return min(number, LONGEST_RESET_S)
    parts = _DURATION.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text.strip():
        return min(sum(float(amount) * _SECONDS[unit] for amount, unit in parts), LONGEST_RESET_S)
    try:
        at = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return min(max(0.0, at.timestamp() - clock), LONGEST_RESET_S)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0 <= value < 1e15 else None


def _burst(per_minute: float) -> float:
    """Burst size of a limit set by the user: two seconds' worth, so that no minute exceeds the limit by much."""
    return max(1.0, per_minute / 30)
