"""Builds index parts from a file: several threads read byte ranges concurrently, each in chunks of rows.

A part holds about `CHUNK` rows. Its lines are numbered from the start of its range, because a thread does not know how many lines
precede its range; the caller renames the parts when all counts are known.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import NamedTuple

from rollforge.conversations.typed_rows import classic_line
from rollforge.index import native_reader
from rollforge.index.identity import key_span
from rollforge.index.jsonl import LineBatch, read_batches
from rollforge.index.native_reader import LineLeft, NativeRows, PromptHashes
from rollforge.index.parts import joined, write_part
from rollforge.index.python_reader import PythonRows, UnreadableLine
from rollforge.index.schema import Kind, discovered_name
from rollforge.index.state import BadLineAt, Scanned
from rollforge.runtime.on_error import OnError

CHUNK = 16_384
"""Rows per part. They are in memory until the part is written, together with the rows of one more block."""

RANGE, LEAST_RANGE = 144 << 20, 24 << 20
"""Largest and smallest byte range: large enough for full parts, small enough that threads finish together."""

WORTH_A_THREAD = 256 << 20
"""File size up to which one thread is used by default."""

MOST, MOST_ASKED_FOR = 16, 64
"""Largest default number of threads, and largest allowed number."""

LONG = 32 << 20
"""Lines of at least this many bytes get a note."""

MAX_LISTED = 1_000
"""Most bad lines listed per range; all of them are counted."""


def reader_count(size: int, workers: int | None) -> int:
    """Number of reader threads: as requested, else one per core for large files."""
    if workers or size < WORTH_A_THREAD:
        return min(workers or 1, MOST_ASKED_FOR)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


class ByteRange(NamedTuple):
    """The lines that begin in [start, end). `end` is None for a compressed file, which only one thread can read."""

    start: int
    end: int | None


def build_parts(
    path: Path, kind: Kind, whole: ByteRange, stem: Path, workers: int | None
) -> Iterator[Scanned]:
    """Read a file into parts named `stem` plus numbers; returns the contents of each range in file order."""
    if whole.end is None:
        yield read_range(path, kind, whole, stem)
        return
    count = reader_count(whole.end - whole.start, workers)
    ranges = [ByteRange(*ends) for ends in pairwise(_bounds(whole.start, whole.end, count))]
    stop = Event()

    def read(number: int) -> Scanned:
        return read_range(path, kind, ranges[number], stem.with_name(f"{stem.name}-{number}"), stop)

    with ThreadPoolExecutor(min(max(len(ranges), 1), count), "rollforge-reader") as pool:

        def end_readers() -> None:
            stop.set()  # they end at their next block
            pool.shutdown(wait=False, cancel_futures=True)

        with OnError(end_readers):
            yield from pool.map(read, range(len(ranges)))


def _bounds(start: int, end: int, count: int) -> list[int]:
    """Boundaries of the ranges. For several threads, ranges shrink towards the end, so that all threads finish at about the same
    time.
    """
    bounds = [start]
    while (left := end - bounds[-1]) > 0:
        size = RANGE if count == 1 else min(RANGE, max(left // (2 * count), LEAST_RANGE))
        bounds.append(bounds[-1] + (size if left - size >= LEAST_RANGE else left))
    return bounds


def read_range(
    path: Path, kind: Kind, bytes_read: ByteRange, stem: Path, stop: Event | None = None
) -> Scanned:
    """Read the lines of one range into parts named `stem` plus numbers."""
    scan = _RangeScan(path, kind, stem)
    scan.scanned.end = bytes_read.start
    was_enabled = gc.isenabled()
    gc.disable()  # no cycles are made here, and searching for some among many small objects doubles the time
    try:
        for batch in read_batches(path, *bytes_read):
            scan.take(batch)
            if stop is not None and stop.is_set():
                break
        scan.flush()
    finally:
        if was_enabled:
            gc.enable()
    scan.scanned.listed.sort(key=lambda bad: bad.line)
    return scan.scanned


class _RangeScan:
    """State of a range being read: the compiled reader handles ordinary rows, Python all others."""

    def __init__(self, path: Path, kind: Kind, stem: Path) -> None:
        self.scanned = Scanned(typed=0)
        self._file = str(path)
        self._kind: Kind = kind
        self._stem = stem
        self._is_native = kind in native_reader.KINDS and native_reader.is_available()
        self._prompts = PromptHashes()
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._ordinary = NativeRows(self._kind, self._prompts) if self._is_native else None
        self._others = PythonRows(self._kind)

    def take(self, batch: LineBatch) -> None:
        """Read adjacent lines. A bad line is listed, a blank one only counted."""
        first = self.scanned.lines + 1
        if batch.error:
            self._list(first, batch.offset, batch.error, is_kept=False)
            self.scanned.lines += batch.skipped_lines
        elif self._ordinary is not None:
            lines, left = self._ordinary.take(batch.data, first, batch.offset)
            self.scanned.lines += lines
            self._take_lines(batch, left)
        else:
            left = [LineLeft(number, *span) for number, span in enumerate(batch.spans(), first)]
            self.scanned.lines += len(left)
            self._take_lines(batch, left)
        if len(batch.data) >= LONG:
            self._note_long_lines(batch, first)
        self.scanned.end = batch.offset + len(batch.data)
        if len(self._others) + len(self._ordinary or ()) >= CHUNK:
            self.flush()

    def _take_lines(self, batch: LineBatch, lines: list[LineLeft]) -> None:
        for number, start, end in lines:
            line = bytes(batch.data[start:end])
            if self._kind == "rollouts" and classic_line(line) is not line:
                self.scanned.typed = 1 + (self.scanned.typed or 0)
            try:
                self._others.take(line, number, batch.offset + start)
            except UnreadableLine as error:
                if line.strip():
                    reason = str(error) if batch.is_terminated else f"torn last line ({error})"
                    self._list(number, batch.offset + start, reason, is_kept=False)

    def _note_long_lines(self, batch: LineBatch, first: int) -> None:
        rejected = {bad.line for bad in self.scanned.listed}
        for number, (start, end) in enumerate(batch.spans(), first):
            if end - start >= LONG and number not in rejected:
                reason = f"the line is {(end - start) / 1e6:,.0f} MB long"
                self._list(number, batch.offset + start, reason, is_kept=True)

    def _list(self, line: int, offset: int, reason: str, *, is_kept: bool) -> None:
        self.scanned.noted += is_kept
        self.scanned.rejected += not is_kept
        if len(self.scanned.listed) < MAX_LISTED:
            bad = BadLineAt(file=self._file, line=line, offset=offset, reason=reason, is_kept=is_kept)
            self.scanned.listed.append(bad)

    def flush(self) -> None:
        """Write the rows of this chunk as a part."""
        made = [rows.table() for rows in (self._ordinary, self._others) if rows]
        self._begin_chunk()
        if not made:
            return
        for _, notes in made:
            for (line, offset), texts in notes.items():
                self._list(line, offset, "; ".join(sorted(texts)), is_kept=True)
        table = joined([table for table, _ in made])
        for name in table.column_names:
            if (discovered := discovered_name(name)) is not None:
                counts = self.scanned.numbers if discovered[0] == "n" else self.scanned.texts
                counts[discovered[1]] = (
                    counts.get(discovered[1], 0) + table.num_rows - table.column(name).null_count
                )
        part = write_part(table, self._stem.with_name(f"{self._stem.name}-{len(self.scanned.parts)}.parquet"))
        if self._kind == "rollouts":
            part.keys = key_span(table.column("task"), table.column("rollout"))
        self.scanned.parts.append(part)
        self.scanned.rows += table.num_rows
