"""This module begins to read a large file before the rest of rollforge is loaded, which takes as long as reading 50 MB does.

It decides nothing: what was read is taken over by whoever comes to read the same bytes of the same file, or by nobody. It loads
only what is loaded anyway when Python has started.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO

from rollforge.index import compiled
from rollforge.index.ranges import CHUNK, bounds, last_line_start, line_start

if TYPE_CHECKING:
    from rollforge.index._rows import Rows, Took

_begun: dict[tuple[int, int], _Stretch] = {}
"""By where they begin and where the range ends."""


def begin(path: str, readers: int) -> None:
    """Let so many threads read the first ranges of a file."""
    if not compiled.IS_THERE:
        return
    with _open(path) as file:
        whole_end = last_line_start(file, os.fstat(file.fileno()).st_size)
    for start, end in pairwise(bounds(0, whole_end, readers)[: readers + 1]):
        file = _open(path)  # the thread closes it
        offset = line_start(file, start)
        _begun[offset, end] = _Stretch(file, offset, end)


def forget() -> None:
    """Drop what nobody took over."""
    _begun.clear()


def take_over(file: BinaryIO, offset: int, end: int) -> tuple[Rows, Took] | None:
    """What was read of the lines that begin in [offset, end); None when that was not begun, or the file has changed since."""
    stretch = _begun.pop((offset, end), None)
    return stretch.result(file) if stretch is not None else None


def _open(path: str) -> BinaryIO:
    return open(path, "rb", buffering=0)  # noqa: PTH123  (pathlib is not loaded yet)


class _Stretch:
    """The lines that a thread reads, and what it found."""

    def __init__(self, file: BinaryIO, offset: int, end: int) -> None:
        self._file, self._offset, self._end = file, offset, end
        self._identity = _identity(file)
        self._found: tuple[Rows, Took] | None = None
        self._thread = Thread(target=self._read, name="rollforge-head-start", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        rows = compiled.new_rows()
        # Whoever reads it again is told of an error.
        with self._file, suppress(OSError):
            self._found = rows, rows.read(self._file.fileno(), self._offset, self._end, 1, CHUNK)

    def result(self, file: BinaryIO) -> tuple[Rows, Took] | None:
        self._thread.join()
        return self._found if _identity(file) == self._identity else None


def _identity(file: BinaryIO) -> tuple[int, ...]:
    """What differs for another file, and after any change of this one."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
