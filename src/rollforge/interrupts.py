"""This module holds back Ctrl-C while modules are loaded.

An exception that comes in the middle of that may be lost, with the lock of a module never let go of (Python 3.11), or end the
process where a library does not expect one (msgspec, while it builds a decoder).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C interrupts where this ends; a second one at once."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    has_come = False

    def note(*_: object) -> None:
        nonlocal has_come
        if has_come:
            raise KeyboardInterrupt
        has_come = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_come:
        raise KeyboardInterrupt
