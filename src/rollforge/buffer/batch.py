"""Records of the buffer: its options, a claimed batch, its two errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from rollforge.buffer.sample_metrics import sample_metrics
from rollforge.errors import RollforgeError
from rollforge.experience import Experience

OnFull = Literal["wait", "evict-oldest", "evict-lowest"]
ON_FULL: tuple[OnFull, ...] = get_args(OnFull)


class BufferFull(RollforgeError):
    """The buffer stayed full until the producer's patience ended; what was not appended is still the
    producer's."""


class LeaseLost(RollforgeError):
    """The batch was given to someone else meanwhile; its effect must not be counted as the buffer's."""


class BufferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a buffer behaves. Not stored: each process may open it with its own."""

    capacity: int | None = None
    """Experiences waiting or claimed at most; None means unbounded."""
    on_full: OnFull = "wait"
    """The producer waits, or waiting experiences make room: the oldest, or those of lowest priority.
    Evictions are counted."""
    max_uses: int = 1
    """How often an experience is served before it is done."""
    lease_seconds: float = 600.0
    """How long a claim holds without a sign of life from its claimant."""
    seed: int = 0
    clock: Callable[[], float] = time.time


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one claim got."""

    token: str
    ids: list[int]
    experiences: list[Experience]
    version: int | None
    waited: float
    """Seconds the claim waited for enough experiences."""
    claimed_at: float
    counters: dict[str, int]
    """The buffer's counters after the claim."""

    def __len__(self) -> int:
        return len(self.experiences)

    def metrics(self) -> dict[str, float]:
        """`sample/*` of this batch."""
        return sample_metrics(
            self.experiences,
            version=self.version,
            now=self.claimed_at,
            waited=self.waited,
            counters=self.counters,
        )
