"""Reads the text of rows by row number, through the offsets in the index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.errors import UsageError
from rollforge.index import parts
from rollforge.index.arrow import ints
from rollforge.index.jsonl import is_compressed, read_spans
from rollforge.index.schema import Kind
from rollforge.index.state import IndexedFiles
from rollforge.statistics.stats import Ints

FEW_ROWS = 4
"""Number of rows up to which offsets are looked up individually; the offsets of a million rows take 16 MB."""

AT_ONCE = 65_536
"""Number of rows whose offsets are converted to Python integers together."""


class RowText:
    """Reads lines of a run's files by row number."""

    def __init__(self, files: IndexedFiles) -> None:
        self._files = files
        self._spans_by_kind: dict[Kind, tuple[Ints, Ints]] = {}

    def lines(self, kind: Kind, rows: Ints) -> Iterator[bytes]:
        """The lines of these rows, in the given order."""
        files = self._files.by_kind[kind]
        missing = int(((rows < 0) | (rows >= sum(file.state.count("rows") for file in files))).sum())
        if missing:
            raise UsageError(
                f"{missing} of the rows asked for are not in the index",
                hint="the file has changed since: run the command again",
            )
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            owner = self.file_numbers(kind, some)
            offsets, lengths = self._spans(kind, some, len(rows))
            for piece in np.split(np.arange(len(some)), np.flatnonzero(np.diff(owner)) + 1):
                spans = list(zip(offsets[piece].tolist(), lengths[piece].tolist(), strict=True))
                yield from read_spans(files[int(owner[piece[0]])].path, spans)

    def piece(self, row: int, start: int, size: int) -> bytes | None:
        """Part of a rollout's line; None if only the whole line can be read, or there is no such row."""
        if not 0 <= row < self._files.count("rollouts"):
            return None
        file = self._files.by_kind["rollouts"][int(self.file_numbers("rollouts", np.array([row]))[0])]
        if file.state.has_typed or is_compressed(file.path):
            return None
        offset, length = (int(one[0]) for one in self._spans("rollouts", np.array([row]), 1))
        wanted = max(0, min(size, length - start))
        return next(iter(read_spans(file.path, [(offset + start, wanted)]))) if wanted else b""

    def file_numbers(self, kind: Kind, rows: Ints) -> Ints:
        """Number of the file of this kind that contains each row."""
        first_rows = [file.first_row for file in self._files.by_kind[kind]]
        return np.searchsorted(first_rows, rows, side="right") - 1

    def _spans(self, kind: Kind, rows: Ints, row_count: int) -> tuple[Ints, Ints]:
        """Offset and length of each row in its file; for many rows, the offsets of all rows are cached."""
        if row_count <= FEW_ROWS and kind not in self._spans_by_kind:
            return parts.spans_of(self._files.by_kind[kind], rows)
        if kind not in self._spans_by_kind:
            table = parts.read_ints(self._files.by_kind[kind], *parts.SPAN)
            self._spans_by_kind[kind] = ints(table.column("offset")), ints(table.column("length"))
        offsets, lengths = self._spans_by_kind[kind]
        return offsets[rows], lengths[rows]
