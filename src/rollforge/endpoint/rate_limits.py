"""Rate limits of a provider: token buckets for requests and tokens per minute, from flags and from the headers of its answers.

A request is planned with the tokens it is expected to use: its prompt, and an answer as long as the answers so far. When its answer
has come, the plan is corrected by what was used. Each endpoint and key has its own limits. Time is passed in; nothing here sleeps.
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
"""Tokens to expect of an answer before the first one has come."""
FIRST_BYTES_PER_TOKEN = 4.0
LEARNING = 0.1
LONGEST_RESET_S = 24 * 3600.0
_FIRST_TIME = 1e9
"""From here on a number is a time, in seconds or milliseconds since 1970, and no duration."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Bucket:
    """What may be used of one thing: so much at once, refilled at so much a second."""

    def __init__(
        self, capacity: float, per_second: float, *, level: float | None = None, now: float = 0.0
    ) -> None:
        self.capacity = capacity
        self.per_second = per_second
        self._level = capacity if level is None else level
        self._at = now

    def level(self, now: float) -> float:
        """What may be used now; below 0 when more was used than planned."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.per_second)
        self._at = max(self._at, now)
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much may be used; what is larger than the whole bucket waits until that is full."""
        lacking = min(amount, self.capacity) - self.level(now)
        if lacking <= 1e-9:
            return 0.0
        return lacking / self.per_second if self.per_second > 0 else LONGEST_RESET_S

    def take(self, amount: float, now: float) -> None:
        """Use so much; a negative amount gives it back."""
        self._level = min(self.capacity, self.level(now) - amount)

    def observe(self, limit: float, remaining: float, reset_s: float, now: float) -> None:
        """The provider says what is left. It does not know of requests on their way: the lower of both counts holds."""
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
        """Charge a request for the tokens that it is expected to use."""
        for kind, bucket in self._buckets():
            bucket.take(1.0 if kind == "requests" else tokens, now)

    def correct(self, expected: float, used: float, now: float) -> None:
        """Correct the charge of a request to the tokens that it used."""
        for kind, bucket in self._buckets():
            if kind == "tokens":
                bucket.take(used - expected, now)

    def observe(self, headers: Mapping[str, str], now: float, clock: float) -> None:
        """Read what an answer's headers say; `clock` is the time of day, for providers that tell when a limit resets."""
        for kind in KINDS:
            limit = read_limit(headers, kind, clock)
            if limit is None:
                continue
            bucket = self._said[kind]
            if bucket is None:
                bucket = self._said[kind] = Bucket(limit[0], 0.0, level=limit[1], now=now)
            bucket.observe(*limit, now)

    def limit(self, kind: LimitKind) -> float | None:
        """The limit per minute, for people; None when there is none."""
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
    """How many tokens a request will use, learned from those that were answered."""

    def __init__(self) -> None:
        self._output = FIRST_OUTPUT
        self._bytes_per_token = FIRST_BYTES_PER_TOKEN
        self._has_seen = False

    def of(self, body: bytes) -> float:
        """The tokens that a request with this body is expected to use."""
        return len(body) / self._bytes_per_token + self._output

    def learn(self, body: bytes, answer: object) -> float | None:
        """See what an answer used; None when it does not say."""
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
    """Limit, what remains of it, and seconds until it is whole again; None when the headers do not say."""
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
    """Seconds that `6m0s`, `20ms`, `12`, a date or a time since 1970 stands for; 0 when it stands for none."""
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
    """How much of a limit of our own may be used at once: two seconds' worth, so that a minute never sees much more than it."""
    return max(1.0, per_minute / 30)
