"""This module reads a JSONL file as bytes: whole lines with their offsets, plain, gzip or zstd.

Offsets count the bytes of the text, so that in a compressed file they are places in what it unpacks to. It does not parse.
"""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

BLOCK = 4 << 20
"""Bytes read at a time: large enough that the reads cost nothing, small enough to stay in the processor's cache."""

GAP = 64 << 10
"""Rows closer together than this are read in one go: reading through the gap is cheaper than another call."""


def is_compressed(path: Path) -> bool:
    """Whether the file must be unpacked from its start to reach any place in it."""
    return path.suffix in {".gz", ".zst"}


def open_bytes(path: Path) -> BinaryIO:
    """The text of the file as bytes."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return cast(BinaryIO, zstd.open(path, "rb"))
    return path.open("rb", buffering=0)


def read_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, list[bytes], bool]]:
    """Batches of neighbouring lines: (offset of the first, the lines without newline, whether the last one had one).

    Lines that begin in [start, end) are read whole, wherever they end. `start` must be the beginning of a line or any byte
    after 0, in which case the line it falls into is left to whoever reads the range before.
    """
    with open_bytes(path) as file:
        offset, block = _first_line(file, start)
        held: list[bytes] = []
        while block and (end is None or offset < end):
            held.append(block)
            if (
                b"\n" in block
            ):  # else one long line: gathered in a list, because joining at every block would copy it each time
                lines = b"".join(held).split(b"\n")
                held = [lines.pop()]
                kept = lines if end is None else _starting_before(lines, offset, end)
                if kept:
                    yield offset, kept, True
                offset += sum(map(len, lines)) + len(lines)
            block = file.read(BLOCK)
        tail = b"".join(held)
        if tail and (end is None or offset < end):
            yield offset, [tail], False


def last_line_start(path: Path, size: int) -> int:
    """The offset after the last newline before `size`: what follows is a line still being written, or nothing."""
    with path.open("rb", buffering=0) as file:
        while size > 0:
            begin = max(0, size - BLOCK)
            file.seek(begin)
            newline = file.read(size - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            size = begin
    return 0


def _first_line(file: BinaryIO, start: int) -> tuple[int, bytes]:
    """The first offset at or after `start` where a line begins, and the first block from there."""
    if start == 0:
        return 0, file.read(BLOCK)
    file.seek(start - 1)
    position = start - 1
    while block := file.read(BLOCK):
        newline = block.find(b"\n")
        if newline >= 0:
            return position + newline + 1, block[newline + 1 :] or file.read(BLOCK)
        position += len(block)
    return position, b""


def _starting_before(lines: list[bytes], offset: int, end: int) -> list[bytes]:
    if offset + sum(map(len, lines)) + len(lines) <= end:
        return lines
    kept = []
    for line in lines:
        if offset >= end:
            break
        kept.append(line)
        offset += len(line) + 1
    return kept


def read_spans(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes at each (offset, length), in the order asked; neighbouring ones are read together."""
    if is_compressed(path):
        yield from _read_spans_compressed(path, spans)
        return
    with path.open("rb", buffering=0) as file:
        first = 0
        while first < len(spans):
            last = _run_end(spans, first)
            begin = spans[first][0]
            size = spans[last][0] + spans[last][1] - begin
            file.seek(begin)
            data = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):
                data += more
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
        if not is_near or following[0] + following[1] - spans[first][0] > BLOCK:
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
