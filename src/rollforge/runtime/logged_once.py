"""Keeps background work alive: a failing round is logged once, and the next round tries again."""

from __future__ import annotations

import logging
from types import TracebackType


class LoggedOnce:
    """`with logged:` ends a failing block with a warning; a failure equal to the last one is not repeated.

    Use it where an exception would end a task or thread that nobody waits for. Cancellation and interrupts go on.
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._last = ""

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        message = f"{self._what}: {type(error).__name__}: {error}"
        if message != self._last:
            self._last = message
            self._logger.warning("%s", message)
        return True
