"""This module lets one thread alone load what all need: the main one, while others read.

A thread that needs a module which another is loading stands still until that is done. Readers put aside what they could not go on
with, and load nothing before the main thread has.
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
    """Whether somebody is loading what parts are made with."""
    return not _is_done.is_set()
