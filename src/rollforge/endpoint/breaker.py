"""A circuit breaker per endpoint, and the retry budget that all requests of a run share.

Both are pure logic: the caller sleeps, sends and passes the time.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from rollforge.store.manifest import RequestFacts

BreakerState = Literal["closed", "open", "half-open"]

WINDOW = 20
"""Number of recent answers that the breaker considers."""
OPEN_SHARE = 0.8
"""The breaker opens when this share of them failed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Breaker:
    """Circuit breaker. Closed: all requests pass. Open: none, for a pause that doubles. Half-open: one request probes; its answer
    decides.
    """

    def __init__(self) -> None:
        self.state: BreakerState = "closed"
        self.opened = 0
        """Number of times that it opened."""
        self.down_since: float | None = None
        """When the endpoint stopped answering; None while it answers."""
        self._results: deque[bool] = deque(maxlen=WINDOW)
        self._pause_s = FIRST_PAUSE_S
        self._open_until = 0.0
        self._is_probing = False

    def wait_s(self, now: float) -> float:
        """Seconds until a request may pass; 0 if one may pass now, inf while a probe is in flight."""
        if self.state == "closed":
            return 0.0
        if self.state == "open" and now >= self._open_until:
            self.state = "half-open"
            self._is_probing = False
        if self.state == "half-open":
            return float("inf") if self._is_probing else 0.0
        return self._open_until - now

    def begin(self) -> None:
        """Record that a request passes."""
        if self.state == "half-open":
            self._is_probing = True

    def succeed(self) -> None:
        """The endpoint answered (a 4xx is an answer too)."""
        self._results.append(True)
        self.down_since = None
        if self.state != "closed":
            self.state = "closed"
            self._results.clear()
            self._pause_s = FIRST_PAUSE_S

    def fail(self, now: float, *, is_unreachable: bool = False) -> None:
        """Record a failure: no answer in time, a 5xx, a torn body. A refused connection counts more."""
        self._results.extend([False] * (4 if is_unreachable else 1))
        if self.state == "half-open":
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            self._open(now)
        elif self.state == "closed" and self._is_hopeless():
            self.down_since = now
            self._open(now)

    def _is_hopeless(self) -> bool:
        return len(self._results) >= WINDOW // 2 and self._results.count(False) >= OPEN_SHARE * len(
            self._results
        )

    def _open(self, now: float) -> None:
        self.state = "open"
        self.opened += 1
        self._open_until = now + self._pause_s
        self._is_probing = False

    def release(self) -> None:
        """Record that a probe was cancelled without an answer, so that another request can probe."""
        self._is_probing = False


class RetryBudget:
    """The retry budget of a run: a share of its fresh requests, plus a head start."""

    def __init__(self, share: float, *, head_start: int = 200) -> None:
        self._share = share
        self._head_start = head_start
        self.fresh = 0
        self.spent = 0
        self.denied = 0

    def divide(self, sharers: int) -> None:
        """Divide the initial retries by the number of processes (`sharers`), so that all together may retry as often as one."""
        self._head_start = self._head_start // sharers

    def count_fresh(self) -> None:
        """Count a request that is not a retry."""
        self.fresh += 1

    def take(self) -> bool:
        """Whether another retry may be sent; a permitted retry is counted."""
        if self.spent < self._share * (self._head_start + self.fresh):
            self.spent += 1
            return True
        self.denied += 1
        return False

    def facts(self) -> RequestFacts:
        """For the manifest."""
        return RequestFacts(fresh=self.fresh, retries=self.spent, retries_denied=self.denied)
