"""Lines and byte ranges of plain, gzip and zstd JSONL files. Lines are not parsed.

Offsets count bytes of the text: in a compressed file, of the uncompressed text. No line longer than `MAX_LINE` is held in memory.
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
from rollforge.store.absent import absent_text

BLOCK = 1 << 20
"""Bytes per read: large enough to make system calls cheap, small enough for the processor's cache."""

MAX_LINE = 256 << 20
"""Largest line in bytes. A longer one is skipped, since 1 MB of gzip can unpack to a line of 1 GB."""

GAP = 4 << 10
"""Rows separated by fewer bytes than this are read in one call: reading the gap is cheaper than another call."""

STRETCH = 64 << 10
"""Most bytes of adjacent rows that are read in one call."""


def is_compressed(path: Path) -> bool:
    """Whether the file must be unpacked from its start to reach an offset."""
    return path.suffix in {".gz", ".zst"}


def byte_stream(path: Path) -> BinaryIO:
    """The text of the file as bytes, unpacked."""
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


class LineBatch(NamedTuple):
    """Adjacent lines, as a view into a buffer that the next batch overwrites."""

    offset: int
    """Offset of the first line."""
    data: memoryview
    """The bytes of all lines, with newlines."""
    is_terminated: bool = True
    """Whether the last line ends with a newline."""
    error: str = ""
    """Why the text at `offset` is unreadable (a damaged archive, a line beyond `MAX_LINE`); `data` is then empty."""
    skipped_lines: int = 0
    """Number of lines that the error skips."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """Start and end of each line in `data`, without newline."""
        data = bytes(self.data)
        position = 0
        while position < len(data):
            newline = data.find(b"\n", position)
            end = newline if newline >= 0 else len(data)
            yield position, end
            position = end + 1


def read_batches(path: Path, start: int = 0, end: int | None = None) -> Iterator[LineBatch]:
    """Batches of all lines that begin in [start, end), including their bytes after `end`.

    `start` may be any byte: a line that begins before it belongs to the range before.
    """
    with byte_stream(path) as file:
        unpacking = _Unpacking(path, file) if is_compressed(path) else None
        read: Callable[[memoryview], int] = file.readinto if unpacking is None else unpacking.readinto  # type: ignore[attr-defined]
        offset = max(0, start - 1)
        if offset:
            file.seek(offset)
        skips_line = start > 0
        buffer, filled = bytearray(BLOCK), 0
        while (end is None or offset < end) and (more := read(memoryview(buffer)[filled:])):
            filled += more
            first = 0
            if skips_line:
                # The rest of a line that began before `start`, or of one that is too long.
                first = buffer.find(b"\n", 0, filled) + 1
                if not first:
                    offset, filled = offset + filled, 0
                    continue
                skips_line = False
            last = buffer.rfind(b"\n", 0, filled) + 1
            if last:
                limit = _limit(buffer, last, offset, end)
                if first < limit:
                    yield LineBatch(offset + first, memoryview(buffer)[first:limit])
                offset += last
                filled -= last
                buffer[:filled] = buffer[last : last + filled]
            elif filled >= MAX_LINE:
                yield LineBatch(offset, memoryview(b""), error=TOO_LONG, skipped_lines=1)
                offset, filled, skips_line = offset + filled, 0, True
                buffer = bytearray(BLOCK)
            elif filled == len(buffer):
                longer = bytearray(min(2 * filled, MAX_LINE))
                longer[:filled] = buffer
                buffer = longer
        if unpacking is not None and unpacking.error:
            yield LineBatch(offset, memoryview(b""), error=unpacking.error)
        elif filled and not skips_line and (end is None or offset < end):
            yield LineBatch(offset, memoryview(buffer)[:filled], is_terminated=False)


TOO_LONG = f"the line is longer than {MAX_LINE >> 20} MB; skipped"


class _Unpacking:
    """An archive, read as far as it can be unpacked: the text ends at the damage, and `error` says why."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        import gzip

        self._read: Callable[[memoryview], int] = file.readinto1  # type: ignore[attr-defined]
        kind = gzip.BadGzipFile if path.suffix == ".gz" else _zstd().ZstdError
        self._errors = (EOFError, zlib.error, kind)
        self.error = ""

    def readinto(self, view: memoryview) -> int:
        """Fill the view as far as possible; returns the number of bytes."""
        filled = 0
        while filled < len(view) and not self.error:
            try:
                more = self._read(view[filled:])
            except self._errors as error:
                self.error = f"torn: the archive cannot be unpacked beyond here ({error})"
                break
            if not more:
                break
            filled += more
        return filled


def _limit(buffer: bytearray, size: int, offset: int, end: int | None) -> int:
    """Number of bytes in the block that belong to lines beginning before `end`."""
    if end is None or offset + size <= end:
        return size
    return buffer.find(b"\n", end - offset - 1, size) + 1


def read_lines(path: Path) -> Iterator[bytes]:
    """Every line of the file, without newline; raises at the damaged position of an archive, after the lines before it."""
    for batch in read_batches(path):
        if batch.error:
            raise DataError(f"{path}: {batch.error}", hint=f"see which line: rollforge validate {path}")
        for start, end in batch.spans():
            yield bytes(batch.data[start:end])


def read_spans(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at each (offset, length), in the given order; adjacent spans are read together."""
    if is_compressed(path):
        yield from _read_spans_compressed(path, spans)
        return
    if (text := absent_text(path)) is not None:
        yield from text.read_spans(spans)
        return
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        first = 0
        while first < len(spans):
            last = _run_end(spans, first)
            begin = spans[first][0]
            size = spans[last][0] + spans[last][1] - begin
            data = os.pread(handle, size, begin)
            while len(data) < size and (more := os.pread(handle, size - len(data), begin + len(data))):
                data += more
            _check_size(path, data, size)
            if first == last:
                yield data
            else:
                for offset, length in spans[first : last + 1]:
                    yield data[offset - begin : offset - begin + length]
            first = last + 1


def _check_size(path: Path, data: bytes, size: int) -> None:
    if len(data) < size:
        raise DataError(
            f"{path}: the file has become shorter while it was read", hint="run the command again"
        )


def _run_end(spans: Sequence[tuple[int, int]], first: int) -> int:
    """The last span that can be read together with `first`."""
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
    """One forward pass per ascending sequence of spans, since going back means unpacking from the start."""
    file = byte_stream(path)
    position = 0
    try:
        for offset, length in spans:
            if offset < position:
                file.close()
                file = byte_stream(path)
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
            _check_size(path, data.getvalue(), length)
            yield data.getvalue()
    finally:
        file.close()
