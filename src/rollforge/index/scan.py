"""This module reads a range of a file into Parquet parts: one pass, in chunks, keeping the place of every line.

A part holds about `CHUNK` rows, at most; its lines are numbered from the start of the range, because whoever reads a range does not
know how many lines stand before it. The caller files the part under its first row and line (`row0=…/line0=…`). Reading loads neither
numpy nor Arrow: they are first needed where a part is made, and somebody else may have loaded them by then.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.index import fast, loading
from rollforge.index.facts import BadLine, Reader
from rollforge.index.kinds import Kind, discovered_name
from rollforge.index.lines import Batch, read_batches, read_spans
from rollforge.index.ranges import CHUNK, line_start
from rollforge.index.scanned import BadLineAt, Part, Scanned

if TYPE_CHECKING:
    from rollforge.index.fresh import FreshParts
    from rollforge.index.slow import SlowLines

LONG = 32 << 20
"""A line of so many bytes is noted."""

MAX_LISTED = 1_000
"""Bad lines listed with their place per range; all of them are counted."""


def scan_range(
    path: Path, kind: Kind, start: int, end: int | None, stem: Path, fresh: FreshParts | None = None
) -> Scanned:
    """Read the lines that begin in [start, end) into parts named `stem` + number; `end` None means a compressed file.

    The parts are added to `fresh`, which writes them sooner or later; without it they are written at once.
    """
    return read_range(path, kind, start, end, stem, fresh).finished()


def read_range(
    path: Path, kind: Kind, start: int, end: int | None, stem: Path, fresh: FreshParts | None
) -> RangeScan:
    """The same, but for the parts that cannot be made yet, because what they are made with is still being loaded."""
    scan = RangeScan(path, kind, stem, fresh)
    scan.scanned.end = start
    was_collecting = gc.isenabled()
    gc.disable()  # nothing here makes cycles, and looking for them among millions of small objects doubles the time
    try:
        if end is not None and fast.reads(kind):
            scan.file(path, start, end)
        else:
            scan.batches(path, start, end)
        scan.flush()
    finally:
        if was_collecting:
            gc.enable()
    return scan


class RangeScan:
    """A range being read, chunk by chunk: ordinary rollouts apart from all other lines, because they are read apart."""

    def __init__(self, path: Path, kind: Kind, stem: Path, fresh: FreshParts | None) -> None:
        self.scanned = Scanned()
        self._file = str(path)
        self._stem = stem
        self._fresh = fresh
        self._kind: Kind = kind
        self._reader = Reader()
        self._read: list[tuple[fast.FastRollouts | None, SlowLines | None]] = []
        """Chunks of which no part was made yet."""
        self._clear()

    def finished(self) -> Scanned:
        """What the range held, once all its parts are made."""
        loading.wait()
        self._make_parts()
        self.scanned.listed.sort(key=lambda bad: bad.line)
        return self.scanned

    def _clear(self) -> None:
        self._fast = fast.FastRollouts(self._reader) if fast.reads(self._kind) else None
        self._slow: SlowLines | None = None

    def _slowly(self) -> SlowLines:
        if self._slow is None:
            loading.wait()
            from rollforge.index.slow import SlowLines

            self._slow = SlowLines(self._kind, self._reader)
        return self._slow

    def file(self, path: Path, start: int, end: int) -> None:
        """Take in the lines of a plain file that begin in [start, end): the compiled reader reads it as far as it gets."""
        with path.open("rb", buffering=0) as file:
            offset = line_start(file, start)
            while offset < end:
                assert self._fast is not None
                most = CHUNK - (len(self._slow) if self._slow is not None else 0)
                taken = self._fast.read(file, offset, end, self.scanned.lines + 1, most)
                self.scanned.lines += taken.lines
                spans = [(line.start, line.end - line.start) for line in taken.left]
                for line, data in zip(taken.left, read_spans(path, spans), strict=True):
                    self._take(memoryview(data), line.number, line.start)
                if taken.offset > offset:
                    self.scanned.end = offset = taken.offset
                    self._flush_when_full()
                    continue
                # A very long line, or the last one, without a newline; none at all where the file has become shorter.
                if not self.batches(path, offset, offset + 1):
                    break
                offset = self.scanned.end

    def batches(self, path: Path, start: int, end: int | None) -> bool:
        """Take in the lines that begin in [start, end), and say whether there were some."""
        has_any = False
        for batch in read_batches(path, start, end):
            has_any = True
            self._batch(batch)
            self.scanned.end = batch.offset + len(batch.data)
        return has_any

    def _batch(self, batch: Batch) -> None:
        """Take in neighbouring lines; a bad one is listed, a blank one only counted."""
        first = self.scanned.lines + 1
        if batch.broken:
            self._list(first, batch.offset, batch.broken, is_kept=False)
        elif self._fast is not None:
            lines, left, _ = self._fast.take(batch, first)
            self.scanned.lines += lines
            self._take_lines(batch, left, is_utf8=False)
        else:
            from rollforge.index.slow import is_utf8

            left = [fast.LineLeft(number, *span) for number, span in enumerate(batch.spans(), first)]
            self.scanned.lines += len(left)
            self._take_lines(batch, left, is_utf8=is_utf8(batch.data))
        if len(batch.data) >= LONG:
            self._list_long(batch, first)
        self._flush_when_full()

    def _list_long(self, batch: Batch, first: int) -> None:
        """A row of this size counts, but somebody should know of it."""
        rejected = {bad.line for bad in self.scanned.listed}
        for number, (start, end) in enumerate(batch.spans(), first):
            if end - start >= LONG and number not in rejected:
                reason = f"the line is {(end - start) / 1e6:,.0f} MB long"
                self._list(number, batch.offset + start, reason, is_kept=True)

    def _take_lines(self, batch: Batch, lines: list[fast.LineLeft], *, is_utf8: bool) -> None:
        for number, start, end in lines:
            self._take(
                batch.data[start:end],
                number,
                batch.offset + start,
                is_utf8=is_utf8,
                is_terminated=batch.is_terminated,
            )

    def _take(
        self,
        line: memoryview,
        number: int,
        offset: int,
        *,
        is_utf8: bool = False,
        is_terminated: bool = True,
    ) -> None:
        """Take in a line that the compiled reader does not read."""
        try:
            if not is_utf8:
                _check_utf8(line)
            self._slowly().take(line, number, offset)
        except BadLine as error:
            if bytes(line).strip():
                reason = str(error) if is_terminated else f"torn last line ({error})"
                self._list(number, offset, reason, is_kept=False)

    def _list(self, line: int, offset: int, reason: str, *, is_kept: bool) -> None:
        self.scanned.noted += is_kept
        self.scanned.rejected += not is_kept
        if len(self.scanned.listed) < MAX_LISTED:
            bad = BadLineAt(file=self._file, line=line, offset=offset, reason=reason, is_kept=is_kept)
            self.scanned.listed.append(bad)

    def _held(self) -> int:
        return sum(len(lines) for lines in (self._fast, self._slow) if lines is not None)

    def _flush_when_full(self) -> None:
        if self._held() >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Let a part be made of the chunk: now, if it can be."""
        if self._held():
            self._read.append((self._fast, self._slow))
            self._clear()
        if not loading.is_under_way():
            self._make_parts()

    def _make_parts(self) -> None:
        while self._read:
            self._make_part(*self._read.pop(0))

    def _make_part(self, ordinary: fast.FastRollouts | None, others: SlowLines | None) -> None:
        from rollforge.index import part_tables

        made = []
        if ordinary:
            made.append(part_tables.fast_table(ordinary, self._kind))
        if others:
            made.append(others.table())
        for _, notes in made:
            for (line, offset), told in notes.items():
                self._list(line, offset, "; ".join(sorted(told)), is_kept=True)
        table = part_tables.joined([table for table, _ in made])
        for name in table.column_names:
            found = discovered_name(name)
            if found is not None:
                counts = self.scanned.numbers if found[0] == "n" else self.scanned.texts
                _count(counts, found[1], table.num_rows - table.column(name).null_count)
        path = f"{self._stem}-{len(self.scanned.parts)}.parquet"
        if self._fresh is not None:
            self._fresh.add(path, table)
        else:
            part_tables.write(table, path)
        keys = part_tables.span_of(table) if self._kind == "rollouts" else None
        self.scanned.parts.append(Part(path, self.scanned.rows, table.num_rows, keys))
        self.scanned.rows += table.num_rows


def _count(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more


def _check_utf8(line: memoryview) -> None:
    try:
        bytes(line).decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"invalid UTF-8 (byte {error.start})") from None
