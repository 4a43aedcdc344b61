"""Finds duplicate lines, and decides which one to keep once all faults are known."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator
from typing import Literal


class Repeats:
    """Lines grouped by key; only duplicate keys take memory per line."""

    def __init__(self, stays: Literal["first", "last"] = "first") -> None:
        self.first_by_key: dict[Hashable, int] = {}
        self._later_by_key: dict[Hashable, list[int]] = {}
        self._stays = stays

    def note(self, key: Hashable, line: int) -> int | None:
        """Record a line; returns the first line with this key, if that is another one."""
        first = self.first_by_key.setdefault(key, line)
        if first == line:
            return None
        self._later_by_key.setdefault(key, []).append(line)
        return first

    def lines(self, key: Hashable) -> list[int]:
        """Every line with this key."""
        return [self.first_by_key[key], *self._later_by_key.get(key, ())]

    def left_out(self, bad: Container[int]) -> Iterator[tuple[int, int]]:
        """Good lines to omit → the good line that is kept instead."""
        for key in self._later_by_key:
            good = [line for line in self.lines(key) if line not in bad]
            if good:
                kept_line = good.pop(0 if self._stays == "first" else -1)
                yield from ((line, kept_line) for line in good)
