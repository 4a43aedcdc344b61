"""Notices when nearly every program of a run dies the same way: one mistake, which no further attempt mends."""

from __future__ import annotations

import re
from collections import Counter

ENOUGH = 20
"""As many programs must have died the same way before the run is given up."""

NEARLY_ALL = 0.95
"""The share of all programs so far that must have died that way."""

LINES_SHOWN = 12

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8,}|\d+")
"""What differs between two deaths of one cause: addresses, ids, numbers."""


class Endings:
    """How the programs of a run ended so far."""

    def __init__(self) -> None:
        self._ended = 0
        self._deaths: Counter[str] = Counter()
        self._first_stderr: dict[str, str] = {}
        self.messages: Counter[str] = Counter()
        """Why programs failed by their own doing, with how many did."""

    def survived(self) -> None:
        """Count a program that ended well, or that died of its model."""
        self._ended += 1

    def died(self, message: str, stderr: str) -> str | None:
        """Count a program that failed by its own doing; says why the run should stop, when nearly all die like that."""
        self._ended += 1
        if message in self.messages or len(self.messages) < 100:
            self.messages[message] += 1
        cause = _VARYING.sub("#", message)
        if cause not in self._deaths and len(self._deaths) >= 1000:
            return None
        self._deaths[cause] += 1
        self._first_stderr.setdefault(cause, stderr)
        count = self._deaths[cause]
        if count < ENOUGH or count < NEARLY_ALL * self._ended:
            return None
        return f"{count} of {self._ended} programs ended the same way: {message}{_shown(self._first_stderr[cause])}"


def _shown(stderr: str) -> str:
    """The end of what the first of them wrote, where the cause usually is."""
    lines = [line for line in stderr.splitlines() if line.strip()][-LINES_SHOWN:]
    return "".join(f"\n  | {line[:300]}" for line in lines)
