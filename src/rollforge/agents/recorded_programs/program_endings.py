"""Notices when nearly every program of a run dies for the same reason, which further attempts cannot fix."""

from __future__ import annotations

import re
from collections import Counter

from rollforge.text_safety.outgoing import cut

ENOUGH = 20
"""The run is given up only after at least this many programs died the same way."""

NEARLY_ALL = 0.95
"""Share of all programs so far that must have died the same way."""

LINES_SHOWN = 12

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8,}|\d+")
"""Parts of a message that vary between failures of the same cause: addresses, ids, numbers."""


class Endings:
    """How the programs of a run ended so far."""

    def __init__(self) -> None:
        self._ended = 0
        self._deaths: Counter[str] = Counter()
        self._first_stderr: dict[str, str] = {}
        self.messages: Counter[str] = Counter()
        """Messages of failures caused by programs themselves → how many programs failed so."""

    def survived(self) -> None:
        """Count a program that ended well, or that failed because of the model."""
        self._ended += 1

    def died(self, message: str, stderr: str) -> str | None:
        """Count a failure caused by the program itself; returns why the run should stop, once nearly all fail the same way."""
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
    """The end of the first failed program's output, where the cause usually is."""
    lines = [line for line in stderr.splitlines() if line.strip()][-LINES_SHOWN:]
    return "".join(f"\n  | {cut(line, 300)}" for line in lines)
