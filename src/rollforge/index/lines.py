"""This module reads a JSONL file as bytes: whole lines with their offsets, plain, gzip or zstd.

Offsets count the bytes of the text, so that in a compressed file they are places in what it unpacks to. It does not parse.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from rollforge.errors import DataError

BLOCK = 1 << 20
"""Bytes read at a time: large enough that the reads cost nothing, small enough to stay in the processor's cache."""

GAP = 4 << 10
"""Rows closer together than this are read in one go: reading through a longer gap costs more than another call."""

STRETCH = 64 << 10
"""Bytes of rows that are read in one go: they are taken apart while they are in the processor's cache."""


def is_compressed(path: Path) -> bool:
    """Whether the file must be unpacked from its start to reach any place in it."""
    return path.suffix in {".gz", ".zst"}


def open_bytes(path: Path) -> BinaryIO:
    """The text of the file as bytes."""
    if path.suffix == ".gz":
        import gzip

        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return cast(BinaryIO, _zstd().open(path, "rb"))
    return path.open("rb", buffering=0)


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class Batch(NamedTuple):
    """Neighbouring lines, as views into a buffer that is written over when the next batch is asked for."""

    offset: int
    """Where the first line begins."""
    data: memoryview
    """All of them, with their newlines."""
    is_terminated: bool
    """The last one ended with a newline."""
    first: int = 0
    """Where `data` begins in the buffer."""
    broken: str = ""
    """Why an archive cannot be unpacked any further; `data` is empty then."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """Where each line begins and ends in `data`, without its newline."""
        whole: bytearray = self.data.obj  # type: ignore[assignment]
        first = self.first
        size, position = first + len(self.data), first
        while position < size:
            newline = whole.find(b"\n", position, size)
            end = newline if newline >= 0 else size
            yield position - first, end - first
            position = end + 1


def read_batches(path: Path, start: int = 0, end: int | None = None) -> Iterator[Batch]:
    """The lines that begin in [start, end), whole, wherever they end.

    `start` may be any byte: the line it falls into is left to whoever reads the range before.
    """
    with open_bytes(path) as file:
        read: Callable[[memoryview], int] = file.readinto  # type: ignore[attr-defined]
        unpacking = _Unpacking(path, file) if is_compressed(path) else None
        if unpacking is not None:
            read = unpacking.readinto
        offset, is_first = max(0, start - 1), start > 0
        if offset:
            file.seek(offset)
        buffer, filled = bytearray(BLOCK), 0
        while (end is None or offset < end) and (more := read(memoryview(buffer)[filled:])):
            filled += more
            last = buffer.rfind(b"\n", 0, filled) + 1
            if last:
                # The first is the rest of a line that began before, or the newline just before `start`.
                first = buffer.find(b"\n") + 1 if is_first else 0
                is_first = False
                limit = _limit(buffer, last, offset, end)
                if first < limit:
                    yield Batch(offset + first, memoryview(buffer)[first:limit], True, first)
                offset += last
                filled -= last
                buffer[:filled] = buffer[last : last + filled]
            elif filled == len(buffer):
                longer = bytearray(2 * filled)  # one long line: doubling copies it only a few times
                longer[:filled] = buffer
                buffer = longer
        if unpacking is not None and unpacking.broken:
            yield Batch(offset, memoryview(buffer)[:0], False, 0, unpacking.broken)
        elif filled and not is_first and (end is None or offset < end):
            yield Batch(offset, memoryview(buffer)[:filled], False, 0)


class _Unpacking:
    """An archive as far as it can be unpacked: where it is cut off or damaged, its text ends and `broken` says why."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        import gzip

        self._read: Callable[[memoryview], int] = file.readinto1  # type: ignore[attr-defined]
        kind = gzip.BadGzipFile if path.suffix == ".gz" else _zstd().ZstdError
        self._errors = (EOFError, zlib.error, kind)
        self.broken = ""

    def readinto(self, view: memoryview) -> int:
        """Fill the view, or as much of it as there is."""
        filled = 0
        while filled < len(view) and not self.broken:
            try:
                more = self._read(view[filled:])
            except self._errors as error:
                self.broken = f"torn: the archive cannot be unpacked beyond here ({error})"
                break
            if not more:
                break
            filled += more
        return filled


def _limit(buffer: bytearray, size: int, offset: int, end: int | None) -> int:
    """How much of the block is lines that begin before `end`."""
    if end is None or offset + size <= end:
        return size
    return buffer.find(b"\n", end - offset - 1, size) + 1


def read_lines(path: Path) -> Iterator[bytes]:
    """Every line of the file, without its newline; raises where an archive is cut off, after the lines before."""
    for batch in read_batches(path):
        if batch.broken:
            raise DataError(f"{path}: {batch.broken}")
        for start, end in batch.spans():
            yield bytes(batch.data[start:end])


def read_spans(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at each (offset, length), in the order asked; neighbouring ones are read together."""
    if is_compressed(path):
        yield from _read_spans_compressed(path, spans)
        return
    with path.open("rb", buffering=0) as file:
        place = file.fileno()
        first = 0
        while first < len(spans):
            last = _run_end(spans, first)
            begin = spans[first][0]
            size = spans[last][0] + spans[last][1] - begin
            data = os.pread(place, size, begin)
            while len(data) < size and (more := os.pread(place, size - len(data), begin + len(data))):
                data += more
            if first == last:
                yield data
            else:
                for offset, length in spans[first : last + 1]:
                    yield data[offset - begin : offset - begin + length]
            first = last + 1


def _run_end(spans: Sequence[tuple[int, int]], first: int) -> int:
    """The last span that is read together with `first`."""
    last = first
    while last + 1 < len(spans):
        end = spans[last][0] + spans[last][1]
        following = spans[last + 1]
        is_near = end <= following[0] <= end + GAP
        if not is_near or following[0] + following[1] - spans[first][0] > STRETCH:
            break
        last += 1
    return last


def _read_spans_compressed(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """One forward pass per ascending run of spans: going back means unpacking from the start again."""
    file = open_bytes(path)
    position = 0
    try:
        for offset, length in spans:
            if offset < position:
                file.close()
                file = open_bytes(path)
                position = 0
            while position < offset:
                skipped = len(file.read(min(BLOCK, offset - position)))
                if not skipped:
                    break
                position += skipped
            data = io.BytesIO()
            while data.tell() < length and (more := file.read(length - data.tell())):
                data.write(more)
            position += data.tell()
            yield data.getvalue()
    finally:
        file.close()
