"""Copies rollout lines from the runs into a file in large blocks, without parsing them.

The exporter provides the bytes around the lines of a row, the index their offsets. Nothing is checked, since the index has
already parsed every line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rollforge.errors import DataError
from rollforge.exporters.base import Exporter
from rollforge.recipes.base import Ints, Selection
from rollforge.steps.prepare.rollout_pool import Pool

BLOCK = 1 << 20
AT_ONCE = 4096
"""Rows between two progress reports."""


def copy_rows(
    pool: Pool, selection: Selection, exporter: Exporter, numbers: Ints, path: Path
) -> Iterator[int]:
    """Write the examples to `path`; yields the count so far every few thousand rows."""
    with ExitStack() as held:
        block = _Block(held.enter_context(path.open("wb")))
        held.callback(block.flush)
        paths = pool.source_files()
        sources = [held.enter_context(path.open("rb")).fileno() for path in paths]
        copier = _Copier(pool, block, sources)
        for start in range(0, len(numbers), AT_ONCE):
            yield start
            some = numbers[start : start + AT_ONCE]
            if selection.kind == "demonstration":
                copier.lines(selection.picks[some])
            else:
                copier.framed(selection.picks[some], _frames(pool, selection, exporter, some))


def _frames(pool: Pool, selection: Selection, exporter: Exporter, numbers: Ints) -> Iterator[Sequence[bytes]]:
    """The bytes before, between and after the lines of each row."""
    if selection.kind == "pair":
        chosen, rejected = selection.picks[numbers].T
        values = (pool.candidates.reward[chosen] - pool.candidates.reward[rejected]).tolist()
    else:
        values = selection.values["label"][numbers].tolist()
    return (exporter.frame(selection.kind, value) for value in values)


class _Block:
    """A write buffer that reads directly from file descriptors."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._view = memoryview(bytearray(BLOCK))
        self._filled = 0

    def put(self, text: bytes) -> None:
        """Append bytes."""
        end = self._filled + len(text)
        if end > BLOCK:
            self.flush()
            self._file.write(text)
        else:
            self._view[self._filled : end] = text
            self._filled = end

    def take(self, source: int, begin: int, end: int) -> None:
        """Append the bytes between two offsets of an open file."""
        while begin < end:
            if self._filled == BLOCK:
                self.flush()
            size = os.preadv(source, [self._view[self._filled : self._filled + end - begin]], begin)
            if not size:
                raise DataError("a rollouts file became shorter while it was copied", hint="run it again")
            begin += size
            self._filled += size

    def flush(self) -> None:
        """Write the buffer to the file."""
        self._file.write(self._view[: self._filled])
        self._filled = 0


class _Copier:
    """Copies lines by their offsets."""

    def __init__(self, pool: Pool, block: _Block, sources: list[int]) -> None:
        self._pool, self._block, self._sources = pool, block, sources
        self._offset, self._length = pool.spans

    def lines(self, positions: Ints) -> None:
        """Copy lines; adjacent lines of a file are copied as one piece."""
        run, begin = self._pool.source[positions], self._offset[positions]
        end = begin + self._length[positions]
        is_apart = (run[1:] != run[:-1]) | (begin[1:] != end[:-1] + 1)
        last = np.flatnonzero(np.r_[is_apart, True])
        first = np.r_[0, last[:-1] + 1]
        pieces = zip(run[first].tolist(), begin[first].tolist(), end[last].tolist(), strict=True)
        for number, start, stop in pieces:
            self._block.take(self._sources[number], start, stop)
            self._block.put(b"\n")

    def framed(self, positions: Ints, frames: Iterator[Sequence[bytes]]) -> None:
        """Copy rows of one or two lines with their surrounding bytes."""
        rows = positions.reshape(len(positions), -1)
        run, begin = self._pool.source[rows], self._offset[rows]
        spans = np.stack([run, begin, begin + self._length[rows]], axis=2).tolist()
        for lines, frame in zip(spans, frames, strict=True):
            self._block.put(frame[0])
            for (number, start, stop), after in zip(lines, frame[1:], strict=True):
                self._block.take(self._sources[number], start, stop)
                self._block.put(after)
