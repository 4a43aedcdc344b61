"""This module says between which keys those of some rows lie: rows whose spans do not meet have no key in common."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class KeySpan(msgspec.Struct, frozen=True):
    """Where the keys of rows lie that all have both numbers, no two the same."""

    first: tuple[int, int]
    """(task, rollout)"""
    last: tuple[int, int]
    least_rollout: int
    largest_rollout: int

    def meets(self, other: KeySpan) -> bool:
        """Whether the same key may stand in both."""
        return (
            self.first <= other.last
            and other.first <= self.last
            and self.least_rollout <= other.largest_rollout
            and other.least_rollout <= self.largest_rollout
        )


def meeting(spans: Sequence[KeySpan], known: int) -> list[int]:
    """The places of those that meet another one; what the first `known` have among themselves is known not to."""
    found: set[int] = set()
    for place in range(known, len(spans)):
        others = [other for other in range(place) if spans[other].meets(spans[place])]
        if others:
            found |= {place, *others}
    return sorted(found)
