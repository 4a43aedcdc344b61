"""This module lets one thread alone load what all need: the main one, while others read.

Python loses a Ctrl-C that comes while it takes the lock of a module, and does not let go of that lock; threads that load something
then wait for ever. Readers therefore load nothing before the main thread has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

_is_done = Event()
_is_done.set()


@contextmanager
def by_this_thread() -> Iterator[None]:
    """Others wait until what is inside has been loaded."""
    _is_done.clear()
    try:
        yield
    finally:
        _is_done.set()


def wait() -> None:
    """Until nobody loads anything."""
    _is_done.wait()


def is_under_way() -> bool:
    """Whether somebody is loading what parts are written with."""
    return not _is_done.is_set()
