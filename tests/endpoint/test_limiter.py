"""The limit finds the server's capacity, cuts on 429, and settles instead of swinging.

Servers are modelled by what limits them (capacity, or a rate limit) and driven in simulated time.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from rollforge.endpoint.limiter import ConcurrencyRange, Limiter
from rollforge.errors import UsageError


class Server:
    """Answers `capacity` requests at once, each in a second or so; the rest wait in line."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.noise = random.Random(seed)

    def drive(self, limiter: Limiter, seconds: float, now: float = 0.0) -> float:
        """A saturated client for a while: every answer is followed by another request."""
        end = now + seconds
        while now < end:
            in_flight = limiter.limit
            limiter.try_acquire()
            limiter._round.is_saturated = True
            limiter.in_flight = 0
            rate = min(in_flight, self.capacity)  # answers per second
            now += 1.0 / rate
            waiting = in_flight / rate
            limiter.succeed(waiting * self.noise.uniform(0.7, 1.3), now)
        return now


@pytest.mark.parametrize("capacity", [24, 100, 700])
def test_it_climbs_to_the_capacity_and_stays_near_it(capacity: int) -> None:
    limiter = Limiter(ConcurrencyRange.parse("auto"))
    now = Server(capacity).drive(limiter, 600)
    assert 0.6 * capacity <= limiter.limit <= 2.6 * capacity
    changes_before = len(limiter.history)
    Server(capacity, seed=1).drive(limiter, 600, now)
    assert len(limiter.history) - changes_before <= 6, "it settles"


def test_it_looks_lower_once_when_the_start_is_already_too_much() -> None:
    limiter = Limiter(ConcurrencyRange.parse("auto"))
    Server(8).drive(limiter, 120)
    assert 8 <= limiter.limit <= 10
    assert "trying less" in " ".join(change.reason for change in limiter.history)


def test_it_never_goes_above_the_slots_a_server_names() -> None:
    limiter = Limiter(ConcurrencyRange.parse("auto"))
    limiter.cap(8, 0.0, "the server has 8 slots")
    Server(100).drive(limiter, 120)
    assert limiter.limit == 8 and limiter.history[1].reason == "the server has 8 slots"


def test_it_does_not_grow_when_it_is_not_saturated() -> None:
    limiter, now = Limiter(ConcurrencyRange.parse("auto")), 0.0
    for _ in range(2000):
        now += 0.1
        limiter.succeed(0.05, now)
    assert limiter.limit == 16 and len(limiter.history) == 1


def test_a_burst_of_429_cuts_once_and_says_why() -> None:
    limiter = Limiter(ConcurrencyRange.parse("auto"))
    before = limiter.limit
    for _ in range(50):
        limiter.rate_limited(10.0, 2.0)
    assert before * 0.6 <= limiter.limit < before
    assert [change.reason for change in limiter.history] == ["start", "429, retry after 2 s"]


def test_a_server_that_slows_down_for_good_gets_fewer_requests() -> None:
    limiter = Limiter(ConcurrencyRange.parse("64-64"))
    limiter = Limiter(ConcurrencyRange(1, 64))
    now = Server(64).drive(limiter, 300)
    settled = limiter.limit
    Server(8).drive(limiter, 600, now)
    assert limiter.limit < settled
    assert "slower than usual" in " ".join(change.reason for change in limiter.history)


def test_a_fixed_limit_never_moves() -> None:
    limiter = Limiter(ConcurrencyRange.parse(32))
    limiter.rate_limited(1.0, 1.0)
    Server(8).drive(limiter, 100)
    assert limiter.limit == 32 and limiter.history[0].reason == "fixed"


async def test_waiters_get_places_as_they_are_given_back() -> None:
    limiter = Limiter(ConcurrencyRange.parse(2))
    most, running = 0, 0

    async def work() -> None:
        nonlocal most, running
        await limiter.acquire()
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        limiter.release()

    await asyncio.gather(*(work() for _ in range(50)))
    assert most == 2 and limiter.in_flight == 0


async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    limiter = Limiter(ConcurrencyRange.parse(1))
    await limiter.acquire()
    first, second = (asyncio.create_task(limiter.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    limiter.release()
    first.cancel()
    await asyncio.wait_for(second, 1)


@pytest.mark.parametrize("text", ["0", "x", "9-3", "-4", ""])
def test_nonsense_is_refused_with_the_right_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ConcurrencyRange.parse(text)
    assert "8-512" in (caught.value.hint or "")
