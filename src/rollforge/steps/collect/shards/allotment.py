"""Divides the concurrency of a run among its workers."""

from __future__ import annotations

from rollforge.endpoint import ConcurrencyRange
from rollforge.steps.collect.shards.shard_worker import WorkerReport, shares

BURST_S = 5.0
"""429s within this time count as one event."""
CALM_S = 10.0
"""Time without a 429 after which the shares grow again."""


class Allotment:
    """Equal shares of the concurrency for workers with work; a 429 halves all shares once."""

    def __init__(self, concurrency: str) -> None:
        self.workers = 1
        self._range = ConcurrencyRange.parse(concurrency)
        self._factor = 1.0
        self._changed_at = 0.0
        self._at_work: dict[str, None] = {}
        """Workers that were given a share, in the order of their arrival."""
        self._known: set[str] = set()

    def lost(self, name: str) -> None:
        """Release the share of a lost worker."""
        self._at_work.pop(name, None)

    def rate_limited(self, now: float) -> None:
        """Handle a 429 that any worker received."""
        if self._range.is_fixed or now - self._changed_at < BURST_S:
            return
        self._factor, self._changed_at = max(self._factor / 2, 1 / 64), now

    def share(self, name: str, reports: dict[str, WorkerReport], now: float) -> int | None:
        """Current request limit of one worker; None if a single worker has the whole concurrency."""
        if self.workers == 1 and len(reports) <= 1:
            return None
        if self._factor < 1 and now - self._changed_at > CALM_S:
            self._factor, self._changed_at = min(1.0, self._factor * 1.25), now
        for one in (*reports, name):
            self._at_work.setdefault(one)
        self._known |= self._at_work.keys()
        busy = [
            one
            for one in self._at_work
            if one == name or one not in reports or not reports[one].is_hungry or reports[one].in_flight
        ]
        count = len(busy) + max(
            0, self.workers - len(self._known)
        )  # those that start now will ask for theirs
        return shares(max(count, int(self._range.high * self._factor)), count)[busy.index(name)]
