"""Columns of a large profile in a memory-mapped temporary file: a million tasks have a gigabyte of statistics.

Most profiles are small and never use it. A stored column is an ordinary array whose pages are loaded on access.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

BUDGET = 16 << 20
"""Bytes of columns that are held in memory."""

PIECE = 64 << 10
"""Bytes per write, because the system may cache data written together as one large page."""

_libc = ctypes.CDLL(None)

Number = TypeVar("Number", np.float64, np.int64)


class Shelf:
    """Holds columns; those beyond `BUDGET` are in an unnamed temporary file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = 0
        self._file: IO[bytes] | None = None
        self._end = 0
        self._maps: list[mmap.mmap] = []

    def put(self, values: NDArray[Number]) -> NDArray[Number]:
        """A writable copy of the values, in memory or in the file."""
        self._size += values.nbytes
        if self._size <= BUDGET or not values.nbytes:
            return values
        if self._file is None:
            self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  (closed with its last array)
        self._file.seek(self._end)
        data = np.ascontiguousarray(values).view(np.uint8).data
        while data:
            data = data[self._file.write(data[:PIECE]) :]
        pages = mmap.mmap(self._file.fileno(), values.nbytes, offset=self._end)
        self._end += -(-values.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._maps.append(pages)
        return np.frombuffer(pages, dtype=values.dtype)

    def settle(self) -> None:
        """Return freed memory to the system before further columns are made."""
        self.rest()
        if self._maps and hasattr(_libc, "malloc_trim"):
            _libc.malloc_trim(0)

    def rest(self) -> None:
        """Page the columns out."""
        for pages in self._maps:
            if hasattr(pages, "madvise"):
                pages.madvise(mmap.MADV_DONTNEED)
