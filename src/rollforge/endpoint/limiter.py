"""Adaptive concurrency limit: how many requests may be in flight.

Slow start doubles the limit while the client is saturated and throughput still grows. A 429 cuts it, once per episode. When more
concurrency only makes answers slower, the limit steps back and holds, trying again ever more rarely, so that it settles instead of
oscillating. If the very first step up brings nothing, half is tried once: the start may already be too much. Every change is kept with
its reason. Time is passed in; nothing here sleeps or sends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from statistics import median
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.store.manifest import ConcurrencyFacts, LimitChange

START, LOWEST, HIGHEST = 16, 1, 4096
CUT = 0.7
"""A 429 leaves this share of the limit."""
GAIN = 0.4
"""Growing by 30 % must raise throughput by at least this share of 30 %, or it only makes answers slower."""
STEP = 1.3
AS_FAST = 0.95
"""Half the limit that reaches this share of the throughput is the better limit."""
COLLAPSE = 2.5
"""Answers this many times slower than usual at the same limit, round after round, mean that the server is in trouble."""
HISTORY = 500


class ConcurrencyRange(msgspec.Struct, frozen=True):
    """What `-c` said: a fixed number, `auto`, or `MIN-MAX`."""

    low: int
    high: int

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high

    @classmethod
    def parse(cls, text: str | int) -> ConcurrencyRange:
        """The range that `auto`, `64` or `8-512` stands for."""
        words = str(text).strip().lower()
        if words == "auto":
            return cls(LOWEST, HIGHEST)
        low, _, high = words.partition("-")
        try:
            found = cls(int(low), int(high or low))
        except ValueError:
            found = cls(0, 0)
        if not 1 <= found.low <= found.high:
            raise UsageError(
                f"concurrency {text!r} is not understood", hint="write auto, a number such as 64, or 8-512"
            )
        return found


class Limiter:
    """A counting gate whose size adapts. One per run, shared by all endpoints."""

    def __init__(self, limits: ConcurrencyRange, *, now: float = 0.0) -> None:
        self._range = limits
        self.limit = limits.high if limits.is_fixed else max(limits.low, min(START, limits.high))
        self.in_flight = 0
        self.peak = 0
        self.history: list[LimitChange] = [
            LimitChange(at=now, limit=self.limit, reason="fixed" if limits.is_fixed else "start")
        ]
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._round = _Round(now)
        self._best: _Level | None = None
        self._phase: Literal["slow-start", "steady"] = "slow-start"
        self._hold_until = 0.0
        self._hold_s = 30.0
        self._cut_until = 0.0
        self._slow_rounds = 0
        self._more: _Level | None = None
        """What the start achieved, while half of it is tried."""
        self._has_tried_less = False

    def try_acquire(self) -> bool:
        """Take a place if one is free now."""
        if self.in_flight >= self.limit:
            self._round.is_saturated = True
            return False
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        return True

    async def acquire(self) -> None:
        """Take a place, waiting for one if need be."""
        while not self.try_acquire():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # our turn passes to the next
                raise

    def release(self) -> None:
        """Give a place back."""
        self.in_flight -= 1
        self._wake(1)

    async def lend(self, pause: Awaitable[None]) -> None:
        """Let others have the caller's place during a pause; afterwards the caller has one again, however it ended."""
        self.release()
        try:
            await pause
            await self.acquire()
        except BaseException:
            self.in_flight += 1
            raise

    def facts(self, since: float) -> ConcurrencyFacts:
        """For the manifest: the limit, and every change with its reason and its seconds after `since`."""
        changes = [
            LimitChange(at=round(change.at - since, 3), limit=change.limit, reason=change.reason)
            for change in self.history
        ]
        return ConcurrencyFacts(limit=self.limit, peak=self.peak, history=changes)

    def succeed(self, seconds: float, now: float) -> None:
        """A request was answered after `seconds`."""
        if self._range.is_fixed:
            return
        self._round.seconds.append(seconds)
        # Slow start wants to be quick; later a round must be long enough to tell a gain from noise.
        enough = max(self.limit, 16) if self._phase == "slow-start" else max(2 * self.limit, 64)
        if len(self._round.seconds) >= enough:
            self._end_round(now)

    def cap(self, highest: int, now: float, reason: str) -> None:
        """Never go above `highest`: the server itself says that it works on no more at once."""
        if self._range.is_fixed:
            return
        self._range = ConcurrencyRange(min(self._range.low, highest), min(self._range.high, highest))
        self._set(self.limit, now, reason)

    def rate_limited(self, now: float, retry_after_s: float | None) -> None:
        """The server said 429: cut once, then ignore the rest of the same burst."""
        if self._range.is_fixed or now < self._cut_until:
            return
        self._phase = "steady"
        self._set(
            int(self.limit * CUT),
            now,
            "429" + (f", retry after {retry_after_s:g} s" if retry_after_s else ""),
        )
        self._cut_until = now + max(5.0, (retry_after_s or 0.0) * 1.5)
        self._hold(now)
        self._round = _Round(now)
        self._best = None
        self._more = None

    def _end_round(self, now: float) -> None:
        level = self._round.level(self.limit, now)
        is_saturated = self._round.is_saturated
        self._round = _Round(now)
        best = self._best
        if self._more is not None:
            self._judge_less(level, self._more, now)
            return
        if best is None or level.limit < best.limit:
            self._best = level
        elif level.limit > best.limit:
            self._judge_growth(level, best, now)
            return
        elif self._is_collapsing(level, best):
            self._set(
                int(self.limit * CUT), now, f"answers {level.seconds / best.seconds:.1f}× slower than usual"
            )
            self._hold(now)
            self._best = None
            return
        if is_saturated and now >= self._hold_until:
            self._grow(now)

    def _judge_growth(self, level: _Level, best: _Level, now: float) -> None:
        """Was the last step up worth it? If it only made answers slower, go back and stay."""
        if level.rate >= best.rate * (1 + GAIN * (level.limit / best.limit - 1)):
            self._best = level
            if now >= self._hold_until:
                self._grow(now)
            return
        self._phase = "steady"
        self._best = best
        if not self._has_tried_less and best.limit == self.history[0].limit > self._range.low:
            self._has_tried_less = True
            self._more = best
            self._set(best.limit // 2, now, f"no gain above {best.limit}, trying less")
            return
        self._set(
            best.limit,
            now,
            f"no gain above {best.limit}: {best.rate:.1f}/s there, {level.rate:.1f}/s at {level.limit}",
        )
        self._hold(now)

    def _judge_less(self, level: _Level, more: _Level, now: float) -> None:
        """Was half the start as fast? Then stay there: answers come sooner, and the server has less in its queue."""
        self._more = None
        if level.rate >= AS_FAST * more.rate:
            self._best = level
        else:
            self._best = more
            self._set(
                more.limit, now, f"slower at {level.limit}: {level.rate:.1f}/s, {more.rate:.1f}/s before"
            )
        self._hold(now)

    def _is_collapsing(self, level: _Level, best: _Level) -> bool:
        is_slow = level.seconds > COLLAPSE * best.seconds and level.rate < 0.9 * best.rate
        self._slow_rounds = self._slow_rounds + 1 if is_slow else 0
        if not is_slow:
            self._best = _Level(
                best.limit, 0.8 * best.rate + 0.2 * level.rate, 0.8 * best.seconds + 0.2 * level.seconds
            )
        if self._slow_rounds >= 3:
            self._slow_rounds = 0
            return True
        return False

    def _grow(self, now: float) -> None:
        wanted = (
            self.limit * 2 if self._phase == "slow-start" else max(self.limit + 1, int(self.limit * STEP))
        )
        self._set(wanted, now, "slow start" if self._phase == "slow-start" else "saturated, trying more")

    def _hold(self, now: float) -> None:
        """Stay at this limit for a while; each time longer, so that trying again never becomes swinging."""
        self._hold_until = now + self._hold_s
        self._hold_s = min(self._hold_s * 2, 1800.0)

    def _set(self, limit: int, now: float, reason: str) -> None:
        limit = max(self._range.low, min(limit, self._range.high))
        if limit == self.limit:
            return
        grown = limit - self.limit
        self.limit = limit
        self.history.append(LimitChange(at=now, limit=limit, reason=reason))
        if len(self.history) > HISTORY:
            del self.history[1 : 1 + HISTORY // 10]  # the start stays; the oldest steps after it go
        if grown > 0:
            self._wake(grown)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1


class _Level(msgspec.Struct, frozen=True):
    """What one limit achieved."""

    limit: int
    rate: float
    seconds: float


class _Round:
    """The answers since the limit last had time to show its effect."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.seconds: list[float] = []
        self.is_saturated = False

    def level(self, limit: int, now: float) -> _Level:
        span = max(now - self.started, 1e-6)
        return _Level(limit, len(self.seconds) / span, max(median(self.seconds), 1e-6))
