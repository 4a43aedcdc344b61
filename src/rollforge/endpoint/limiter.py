"""Adaptive concurrency limit: how many requests may be in flight.

Slow start doubles the limit while the client is saturated and throughput still grows. A 429 cuts it, once per episode. When more
concurrency only makes answers slower, the limit steps back and holds, trying again ever more rarely, so that it settles instead
of oscillating. If the very first step up brings nothing, half is tried once: the start may already be too much. If the server
reports its load (KV cache, queue, preemptions), its load replaces throughput as the criterion: the limit drifts towards a cache
that is four fifths full, slowly enough to observe the effect, because the cache use of requests that start together also grows
together. Every change is recorded with its reason. This is pure logic: the caller sends and passes the time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Literal

import msgspec

from rollforge.endpoint.server_metrics import ServerLoad
from rollforge.errors import UsageError
from rollforge.runtime.on_error import OnError
from rollforge.store.manifest import ConcurrencyFacts, LimitChange

START, LOWEST, HIGHEST = 16, 1, 4096
CUT = 0.7
"""Share of the limit that remains after a 429."""
GAIN = 0.4
"""Growing by 30 % must raise throughput by at least this fraction of 30 %; otherwise it only makes answers slower."""
STEP = 1.3
AS_FAST = 0.95
"""If half the limit reaches this share of the throughput, half is better."""
COLLAPSE = 2.5
"""Answers this many times slower than usual at the same limit, for several rounds, mean that the server is in trouble."""
HISTORY = 500

KV_GOAL, KV_HOLD, KV_FULL = 0.81, 0.86, 0.92
"""Shares of the KV cache: the limit drifts towards the first; from the second on no request starts; above the third the limit is
cut.
"""
UP, DOWN = 3.0, 4.0
"""Drift speed upwards with an empty cache, and downwards per excess; in e-folds per duration of a long answer."""
FASTEST = 0.2
"""Largest change of log(limit) per observation of the server."""
CUT_FULL = 0.9
"""Share of the limit that remains after a full cache or a preemption."""
YOUNG_S = 15.0
"""Age of a run below which answer times are biased: the answers that end first are the short ones."""
SHOWN = 0.3
"""Share of a long answer's duration after which a cut is visible in the cache."""
HELD = 4
"""During a hold, limit / this stays in flight: a cache filled by other clients must not lock us out."""
QUEUE = 0.1
"""Queue length, as a share of running requests, above which the server is at its maximum."""
LOOK_AGAIN_S = 2.0
"""Shortest time between two cuts caused by the server's load."""
FRESH_LOAD_S = 15.0
"""Age above which a load report is ignored."""


class ConcurrencyRange(msgspec.Struct, frozen=True):
    """The value of `-c`: a fixed number, `auto`, or `MIN-MAX`."""

    low: int
    high: int

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high

    @classmethod
    def parse(cls, text: str | int) -> ConcurrencyRange:
        """Parse `auto`, `64` or `8-512`."""
        words = str(text).strip().lower()
        if words == "auto":
            return cls(LOWEST, HIGHEST)
        low, _, high = words.partition("-")
        try:
            limits = cls(int(low), int(high or low))
        except ValueError:
            limits = cls(0, 0)
        if not 1 <= limits.low <= limits.high:
            raise UsageError(
                f"-c/--concurrency {text!r} is not understood",
                hint="write -c auto, a number such as -c 64, or a range such as -c 8-512",
            )
        return limits


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
        self._began = now
        self._best: _Level | None = None
        self._phase: Literal["slow-start", "steady"] = "slow-start"
        self._hold_until = 0.0
        self._hold_s = 30.0
        self._cut_until = 0.0
        self._slow_rounds = 0
        self._more: _Level | None = None
        """Result at the initial limit, while half of it is tried."""
        self._has_tried_less = False
        self._load: ServerLoad | None = None
        self._load_at = self._cut_at = -1e9
        self._seconds = 0.0
        """Estimated duration of a long answer in seconds."""
        self._preempted = 0.0
        """Preemptions since the last cut."""
        self._is_held = False
        """Whether the KV cache is nearly full: running requests continue, no new one starts."""
        self._level = float(self.limit)
        """The unrounded limit during a drift."""
        self._drifts_from: int | None = None
        """The limit at the start of the drift that the last history entry describes."""
        self.on_rate_limit: Callable[[], None] | None = None
        """Called at every 429, to inform other processes that use the same server."""

    @property
    def is_fixed(self) -> bool:
        """Whether the limit never changes."""
        return self._range.is_fixed

    def try_acquire(self) -> bool:
        """Take a place if one is free now."""
        if self.in_flight >= self.limit:
            self._round.is_saturated = True
            return False
        if self._is_held and self.in_flight >= max(1, self.limit // HELD):
            return False
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        return True

    async def acquire(self) -> None:
        """Take a place, waiting if none is free."""
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
        """Lend the caller's place to others during a pause; on exit the caller holds a place again, even after an error."""
        self.release()
        with OnError(self._hold_again):  # the caller holds a place, which it gives back
            await pause
            await self.acquire()

    def _hold_again(self) -> None:
        self.in_flight += 1

    def facts(self, since: float) -> ConcurrencyFacts:
        """For the manifest: the limit, and every change with its reason and its seconds after `since`."""
        changes = [
            LimitChange(at=round(change.at - since, 3), limit=change.limit, reason=change.reason)
            for change in self.history
        ]
        return ConcurrencyFacts(limit=self.limit, peak=self.peak, history=changes)

    def succeed(self, seconds: float, now: float) -> None:
        """Record that a request was answered after `seconds`."""
        if self._range.is_fixed:
            return
        # The longest answers say how long a change takes to show; they are forgotten slowly.
        self._seconds = (
            seconds if seconds > self._seconds else self._seconds + 0.01 * (seconds - self._seconds)
        )
        self._round.seconds.append(seconds)
        # Slow start wants to be quick; later a round must be long enough to tell a gain from noise.
        enough = max(self.limit, 16) if self._phase == "slow-start" else max(2 * self.limit, 64)
        if len(self._round.seconds) >= enough:
            self._end_round(now)

    def cap(self, highest: int, now: float, reason: str) -> None:
        """Set an upper bound: the server reports that it processes at most `highest` requests at once."""
        if self._range.is_fixed:
            return
        self._range = ConcurrencyRange(min(self._range.low, highest), min(self._range.high, highest))
        self._set(self.limit, now, reason)

    def allot(self, share: int, now: float) -> None:
        """Use at most this share of a limit that several processes divide; a later share may be larger."""
        is_fixed = self._range.is_fixed
        low = share if is_fixed else min(self._range.low, share)
        if share == self._range.high:
            return
        self._range = ConcurrencyRange(low, share)
        self._set(share if is_fixed else self.limit, now, f"its share is {share}")

    def rate_limited(self, now: float, retry_after_s: float | None) -> None:
        """Handle a 429: cut once, then ignore the rest of the same burst."""
        if self.on_rate_limit is not None:
            self.on_rate_limit()
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
        if self._is_told(now) and (best is None or best.limit != level.limit):
            self._best = level  # the load decides about growth; answers are only watched for a collapse
            return
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
        if is_saturated and now >= self._hold_until and not self._is_told(now):
            self._grow(now)

    def observe_server(self, load: ServerLoad, now: float) -> None:
        """React to a load report: a nearly full cache holds requests back, a full one or a queue cuts the limit, room raises it.

        A hold acts at once and ends with its reason. A cut takes effect when requests end, and is not repeated before.
        """
        if self._range.is_fixed:
            return
        before, since, self._load = self._load, now - self._load_at, load
        self._load_at = now
        if before is not None:  # a counter that fell began again with its server
            self._preempted += max(0.0, load.preemptions - before.preemptions)
        kv = load.kv or 0.0
        self._hold_back(kv >= KV_HOLD)
        if self._preempted > 0 or kv > KV_FULL:
            if now - self._cut_at > max(LOOK_AGAIN_S, SHOWN * self._seconds):
                what = f"{self._preempted:.0f} preemptions" if self._preempted else f"KV cache {kv:.0%} full"
                self._cut(min(int(self.limit * CUT_FULL), self.in_flight), now, f"server: {what}")
        elif load.waiting > max(1.0, QUEUE * load.running):
            if now - self._cut_at > LOOK_AGAIN_S:
                wanted = min(self.limit, int(load.running * 1.05) + 1)
                self._cut(wanted, now, f"server: {load.waiting:.0f} in its queue")
        elif self._seconds and since < FRESH_LOAD_S and now >= self._cut_until:
            length_s = max(self._seconds, LOOK_AGAIN_S, min(now - self._began, YOUNG_S))
            self._drift(load, since / length_s, now)

    def forget_server(self) -> None:
        """The server stopped reporting: remove the limit from its last report."""
        self._hold_back(False)

    def _hold_back(self, is_held: bool) -> None:
        was_held, self._is_held = self._is_held, is_held
        if was_held and not is_held:
            self._wake(self.limit - self.in_flight)

    def _cut(self, limit: int, now: float, reason: str) -> None:
        """Lower the limit at once because the server is overloaded."""
        self._phase = "steady"
        self._cut_at, self._preempted = now, 0.0
        self._best = self._more = None
        self._set(limit, now, reason)

    def _drift(self, load: ServerLoad, lengths: float, now: float) -> None:
        """Move the limit a little towards the goal, in steps measured in long-answer durations; one drift is one history entry."""
        missing = (KV_GOAL - (load.kv or 0.0)) / KV_GOAL
        if missing > 0 and self.in_flight < self.limit:
            return  # more than is asked for
        step = (UP if missing > 0 else DOWN) * missing * lengths
        low, high = self._range.low, self._range.high
        self._level = min(max(self._level * math.exp(min(FASTEST, max(-FASTEST, step))), low), high)
        limit, before, begun = int(self._level), self.limit, self._drifts_from
        if limit == before:
            return
        is_one = begun is not None and (begun < before) == (before < limit) and not _is_far(begun, limit)
        reason = f"server: KV cache {load.kv:.0%} full" if missing < 0 and load.kv else _room_text(load)
        level = self._level
        self._best = self._more = None
        self._set(limit, now, reason)
        self._level, self._drifts_from = level, begun if is_one else before
        if is_one:
            del self.history[-2]

    def _is_told(self, now: float) -> bool:
        """Whether a recent load report decides about the limit."""
        return now - self._load_at < FRESH_LOAD_S

    def _judge_growth(self, level: _Level, best: _Level, now: float) -> None:
        """Evaluate the last step up: if it only made answers slower, go back and hold."""
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
        """Evaluate half the initial limit: if it was as fast, keep it, since answers arrive sooner and the server's queue is
        shorter.
        """
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
        """Keep this limit for a while, longer each time, so that retrying does not oscillate."""
        self._hold_until = now + self._hold_s
        self._hold_s = min(self._hold_s * 2, 1800.0)

    def _set(self, limit: int, now: float, reason: str) -> None:
        limit = max(self._range.low, min(limit, self._range.high))
        if limit == self.limit:
            return
        grown = limit - self.limit
        self.limit = limit
        self._level, self._drifts_from = float(limit), None
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


def _is_far(begun: int, limit: int) -> bool:
    """Whether the drift has moved the limit so far that the history needs a new entry."""
    return max(begun, limit) > STEP * max(1, min(begun, limit))


def _room_text(load: ServerLoad) -> str:
    cache = "" if load.kv is None else f", KV cache {load.kv:.0%} full"
    return f"server: no queue{cache}"


class _Level(msgspec.Struct, frozen=True):
    """Throughput and latency at one limit."""

    limit: int
    rate: float
    seconds: float


class _Round:
    """Answers since the last change of the limit took effect."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.seconds: list[float] = []
        self.is_saturated = False

    def level(self, limit: int, now: float) -> _Level:
        span = max(now - self.started, 1e-6)
        return _Level(limit, len(self.seconds) / span, max(median(self.seconds), 1e-6))
