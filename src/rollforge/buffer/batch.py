"""The buffer's records: options, a claimed batch, and two errors."""

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
    """The buffer stayed full until the producer's timeout; the producer keeps the experiences that were not appended."""


class LeaseLost(RollforgeError):
    """The lease ran out and another claimant has the batch, so its effect must not be counted."""


class BufferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a buffer behaves. Options are not stored: each process may open it with different ones."""

    capacity: int | None = None
    """Limit on experiences that wait or are claimed; None means unbounded."""
    on_full: OnFull = "wait"
    """When the buffer is full: `wait` blocks the producer; otherwise waiting experiences are evicted, the oldest or those of
    lowest priority, and counted.
    """
    max_uses: int = 1
    """How often an experience is served before it is done."""
    lease_seconds: float = 600.0
    """How long a claim lasts unless its claimant renews it."""
    seed: int = 0
    clock: Callable[[], float] = time.time


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one claim."""

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
        """The `sample/*` metrics of this batch."""
        return sample_metrics(
            self.experiences,
            version=self.version,
            now=self.claimed_at,
            waited=self.waited,
            counters=self.counters,
        )
