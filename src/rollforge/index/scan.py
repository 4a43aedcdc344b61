"""This module reads a range of a file into Parquet parts: one pass, in chunks, keeping the place of every line.

A part holds at most `CHUNK` rows; its lines are numbered from the start of the range, because whoever reads a range does not
know how many lines stand before it. The caller files the part under its first row and line (`row0=…/line0=…`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.index.facts import BadLine
from rollforge.index.kinds import COLUMNS, PLACES, ColumnType, Kind, Row, reader_of
from rollforge.index.lines import read_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")

CHUNK = 16_384
"""Rows per part: what is held in memory before it is written."""

MAX_LISTED = 1_000
"""Bad lines listed with their place per range; all of them are counted."""

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
}


class BadLineAt(msgspec.Struct, kw_only=True):
    """A line that is no row (or, when `is_kept`, a row with something odd about it), and where it stands."""

    file: str
    line: int
    offset: int
    reason: str
    is_kept: bool = False
    """The row counts; only what the reason names is missing."""


class Part(msgspec.Struct):
    """One Parquet file and where its rows stand in the range."""

    path: str
    first_row: int
    rows: int


class Scanned(msgspec.Struct, kw_only=True):
    """What a range held."""

    parts: list[Part] = []
    rows: int = 0
    lines: int = 0
    end: int = 0
    """The offset after the last line."""
    rejected: int = 0
    noted: int = 0
    listed: list[BadLineAt] = []
    numbers: dict[str, int] = {}
    """Discovered number columns, each with how many rows have it, in order of appearance."""
    texts: dict[str, int] = {}


def scan_range(path: Path, kind: Kind, start: int, end: int | None, stem: Path) -> Scanned:
    """Read the lines that begin in [start, end) into parts named `stem` + number."""
    scan = _Scan(path, kind, stem)
    scanned = scan.scanned
    scanned.end = start
    for offset, lines, is_terminated in read_lines(path, start, end):
        is_utf8 = _is_utf8(lines)
        for line in lines:
            scan.line(line, offset, is_utf8=is_utf8, is_terminated=is_terminated)
            offset += len(line) + 1
        scanned.end = offset if is_terminated else offset - 1
    scan.flush()
    return scanned


def _is_utf8(lines: Sequence[bytes]) -> bool:
    """Whether all the lines are valid UTF-8: told for many at once, because splitting JSON does not look inside texts."""
    try:
        pa.array(lines, pa.binary()).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        return False
    return True


class _Scan:
    """The columns of the chunk being read."""

    def __init__(self, path: Path, kind: Kind, stem: Path) -> None:
        self.scanned = Scanned()
        self._file = str(path)
        self._stem = stem
        self._types = PLACES | COLUMNS[kind]
        self._read: Callable[[bytes], Row] = reader_of(kind)
        self._clear()

    def _clear(self) -> None:
        self._fixed: list[tuple[object, ...]] = []
        self._numbers: dict[str, list[float | None]] = {}
        self._texts: dict[str, list[str | None]] = {}

    def line(self, line: bytes, offset: int, *, is_utf8: bool, is_terminated: bool) -> None:
        """Take in one line; a bad one is listed, a blank one only counted."""
        self.scanned.lines += 1
        try:
            if not is_utf8:
                _check_utf8(line)
            row = self._read(line)
        except BadLine as error:
            if line.strip():
                reason = str(error) if is_terminated else f"torn last line ({error})"
                self._list(offset, reason, is_kept=False)
            return
        if row.notes:
            self._list(offset, "; ".join(row.notes), is_kept=True)
        count = len(self._fixed)
        self._fixed.append((self.scanned.lines, offset, len(line), *row.fixed))
        _place(self._numbers, row.numbers, count)
        _place(self._texts, row.texts, count)
        if count + 1 == CHUNK:
            self.flush()

    def _list(self, offset: int, reason: str, *, is_kept: bool) -> None:
        self.scanned.noted += is_kept
        self.scanned.rejected += not is_kept
        if len(self.scanned.listed) < MAX_LISTED:
            bad = BadLineAt(
                file=self._file, line=self.scanned.lines, offset=offset, reason=reason, is_kept=is_kept
            )
            self.scanned.listed.append(bad)

    def flush(self) -> None:
        """Write the chunk as a part."""
        count = len(self._fixed)
        if not count:
            return
        columns: dict[str, pa.Array] = {}
        for (name, kind), values in zip(self._types.items(), zip(*self._fixed, strict=True), strict=True):
            columns[name] = _fixed_column(values, kind)
        for name, numbers in self._numbers.items():
            column = _number_column(numbers, count)
            columns[f"n:{name}"] = column
            self.scanned.numbers[name] = self.scanned.numbers.get(name, 0) + count - column.null_count
        for name, texts in self._texts.items():
            texts.extend([None] * (count - len(texts)))
            columns[f"t:{name}"] = pa.array(texts, pa.string())
            self.scanned.texts[name] = (
                self.scanned.texts.get(name, 0) + count - columns[f"t:{name}"].null_count
            )
        path = f"{self._stem}-{len(self.scanned.parts)}.parquet"
        pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=["agent", "model"])
        self.scanned.parts.append(Part(path, self.scanned.rows, count))
        self.scanned.rows += count
        self._clear()


def _check_utf8(line: bytes) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"invalid UTF-8 (byte {error.start})") from None


def _place(columns: dict[str, list[_T | None]], pairs: list[tuple[str, _T]], count: int) -> None:
    """Append each value to its column, first filling up the rows that did not have it; the last of a name counts."""
    for name, value in pairs:
        column = columns.get(name)
        if column is None:
            column = columns[name] = []
        missing = count - len(column)
        if missing > 0:
            column.extend([None] * missing)
        elif missing < 0:
            column.pop()
        column.append(value)


def _fixed_column(values: tuple[object, ...], kind: ColumnType) -> pa.Array:
    try:
        return pa.array(values, ARROW_TYPES[kind])
    except (pa.ArrowInvalid, OverflowError):  # an index beyond 64 bits
        return pa.array([value if _fits(value) else None for value in values], ARROW_TYPES[kind])


def _fits(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _number_column(values: list[float | None], count: int) -> pa.Array:
    values.extend([None] * (count - len(values)))
    try:
        numbers: NDArray[np.float64] = np.array(values, dtype=np.float64)
    except OverflowError:  # an integer beyond what a float holds
        numbers = np.array([_float(value) for value in values], dtype=np.float64)
    return pa.array(numbers, mask=~np.isfinite(numbers))


def _float(value: float | None) -> float:
    try:
        return float("nan") if value is None else float(value)
    except OverflowError:
        return float("nan")
