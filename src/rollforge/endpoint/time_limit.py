"""One time limit for many concurrent awaits, with one timer for all of them.

All awaits have the same limit and expire in the order they began, so only the oldest needs a timer; a timer per request would
cost as much as parsing the answer. An expired await is cancelled and raises `TimeoutError`, as with `asyncio.timeout`; a
cancellation from elsewhere passes through.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

EARLY_S = 0.001
"""Tolerance: the event loop's clock has millisecond ticks, so awaits that expire within the current tick count as expired."""


class TimeLimit:
    """Context manager: `with limit:` around awaits, in any number of tasks at once; not nested within one task."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun: dict[asyncio.Task[Any], tuple[float, int]] = {}
        """Task → its expiry time, and its count of pending cancellations when it began; oldest first."""
        self._expired: dict[asyncio.Task[Any], int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a time limit can only be used inside a task")
        ends = loop.time() + self.seconds
        self._begun[task] = (ends, task.cancelling())
        if self._timer is None:
            self._timer = loop.call_at(ends, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task(self._loop)
        assert task is not None
        if self._begun.pop(task, None) is None:
            cancelling = self._expired.pop(task)
            if task.uncancel() <= cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _expire(self) -> None:
        """Cancel expired tasks, and set the timer for the next one."""
        assert self._loop is not None
        self._timer = None
        due = self._loop.time() + EARLY_S
        while self._begun:
            task, (ends, cancelling) = next(iter(self._begun.items()))
            if ends > due:
                self._timer = self._loop.call_at(ends, self._expire)
                return
            del self._begun[task]
            self._expired[task] = cancelling
            task.cancel()
