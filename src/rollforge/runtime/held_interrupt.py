"""Defers Ctrl-C while modules are imported.

A KeyboardInterrupt during an import may be lost and leave the module's lock held (Python 3.11), or end the process inside a
library that does not expect one (msgspec, while it builds a decoder).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Delay KeyboardInterrupt until the block ends; a second Ctrl-C interrupts at once."""
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
