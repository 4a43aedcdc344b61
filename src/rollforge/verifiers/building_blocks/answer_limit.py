"""CPU-time limit for verifier code whose cost depends on the answer.

An answer can make a verifier run practically for ever: a tower of powers, or a text on which a regular expression backtracks.
Inside `answer_limit` such an answer raises `AnswerTooSlow`, and the verifier gives it reward 0 with `timed_out`. The limit is on
CPU time, so a busy machine does not make answers wrong. The limit does not interrupt native code that never returns to the
interpreter; there the worker pool kills the process and gives the same verdict (see `running.pool`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

ANSWER_SECONDS = 5.0
"""CPU time limit per answer, unless the verifier has an option for it."""
REPEAT_SECONDS = 0.25
"""Interval at which the exception is raised again, in case a library swallowed it."""

TIMED_OUT: Final = "timed_out"
"""Field in the verdict on an answer that exceeded the limit."""


class AnswerTooSlow(BaseException):
    """The answer used up its CPU time. A `BaseException`, so that broad handlers in libraries do not catch it."""


class _Limit:
    """Process-wide state; one limit at a time."""

    is_active = False
    on_change: Callable[[float, float], None] | None = None
    """Called with (limit, CPU time at the start) on entry and (0, 0) on exit, so that a worker can inform its parent."""


def report_to(callback: Callable[[float, float], None] | None) -> None:
    """Call `callback` whenever a limit begins or ends in this process."""
    _Limit.on_change = callback


def disarm() -> None:
    """Stop the timer; no effect if none runs."""
    _Limit.is_active = False
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _Limit.on_change is not None:
        _Limit.on_change(0.0, 0.0)


class answer_limit:
    """Raise `AnswerTooSlow` in the block after `seconds` of CPU time; no limit outside the main thread."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._previous: Any = None
        self._is_armed = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if self._seconds > 0 and is_main and not _Limit.is_active and hasattr(signal, "setitimer"):
            self._previous = signal.signal(signal.SIGPROF, _raise)
            self._is_armed = _Limit.is_active = True
            if _Limit.on_change is not None:
                _Limit.on_change(self._seconds, time.process_time())
            signal.setitimer(signal.ITIMER_PROF, self._seconds, REPEAT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_armed:
            disarm()
            signal.signal(signal.SIGPROF, signal.SIG_DFL if self._previous is None else self._previous)


def _raise(number: int, frame: FrameType | None) -> None:
    if _Limit.is_active:
        raise AnswerTooSlow
