"""This module reads a range of a file into Parquet parts: one pass, in chunks, keeping the place of every line.

A part holds at most `CHUNK` rows; its lines are numbered from the start of the range, because whoever reads a range does not
know how many lines stand before it. The caller files the part under its first row and line (`row0=…/line0=…`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.index import fast
from rollforge.index.arrays import arrow_array, arrow_floats
from rollforge.index.columns import Columns
from rollforge.index.facts import NOT_WHOLE, TOO_LARGE, BadLine, Line, Reader, Row
from rollforge.index.keys import key_span
from rollforge.index.kinds import (
    ARROW_TYPES,
    COLUMNS,
    PIECES,
    PLACES,
    ColumnType,
    Kind,
    discovered_name,
    stored_name,
)
from rollforge.index.lines import Batch, read_batches
from rollforge.index.others import reader_of
from rollforge.index.rollouts import Rollouts
from rollforge.index.scanned import BadLineAt, Part, Scanned
from rollforge.records import ATTEMPT_KEY, FAILURE_KEY, ROLLOUT_KEY, TASK_KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 16_384
"""Rows per part: what is held in memory before it is written."""

LONG = 32 << 20
"""A line of so many bytes is noted."""

SKIPPED = "verification_skipped"
"""NeMo Gym's word that the reward beside it stands for none."""

MAX_LISTED = 1_000
"""Bad lines listed with their place per range; all of them are counted."""


def scan_range(path: Path, kind: Kind, start: int, end: int | None, stem: Path) -> Scanned:
    """Read the lines that begin in [start, end) into parts named `stem` + number."""
    scan = _Scan(path, kind, stem)
    scanned = scan.scanned
    scanned.end = start
    was_collecting = gc.isenabled()
    gc.disable()  # nothing here makes cycles, and looking for them among millions of small objects doubles the time
    try:
        for batch in read_batches(path, start, end):
            scan.batch(batch)
            scanned.end = batch.offset + len(batch.data)
        scan.flush()
    finally:
        if was_collecting:
            gc.enable()
    scanned.listed.sort(key=lambda bad: bad.line)
    return scanned


def _is_utf8(data: memoryview) -> bool:
    """Whether a block is valid UTF-8: told for many lines at once, because splitting JSON does not look inside texts."""
    ends = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _Scan:
    """The columns of the chunk being read: ordinary rollouts apart from all other lines, because they are read apart."""

    def __init__(self, path: Path, kind: Kind, stem: Path) -> None:
        self.scanned = Scanned()
        self._file = str(path)
        self._stem = stem
        self._kind = kind
        self._reader = Reader()
        self._read: Callable[[Line], Row] | None = None if kind == "rollouts" else reader_of(kind)
        self._clear()

    def _clear(self) -> None:
        self._places: list[tuple[int, int, int]] = []
        self._fixed: list[tuple[object, ...]] = []
        self._columns = Columns()
        self._notes: dict[int, list[str]] = {}
        self._rollouts = Rollouts(self._reader, self._columns, self._note)
        self._fast = fast.FastRollouts(self._reader) if fast.reads(self._kind) else None

    def batch(self, batch: Batch) -> None:
        """Take in neighbouring lines; a bad one is listed, a blank one only counted."""
        first = self.scanned.lines + 1
        if batch.broken:
            self._list(first, batch.offset, batch.broken, is_kept=False)
        elif self._fast is not None:
            count, left = self._fast.take(batch, first)
            self.scanned.lines += count
            self._take(batch, left, is_utf8=not left)
        else:
            left = [(number, *span) for number, span in enumerate(batch.spans(), first)]
            self.scanned.lines += len(left)
            self._take(batch, left, is_utf8=_is_utf8(batch.data))
        if len(batch.data) >= LONG:
            self._list_long(batch, first)
        self._rollouts.read()
        if len(self._places) + (len(self._fast) if self._fast is not None else 0) >= CHUNK:
            self.flush()

    def _list_long(self, batch: Batch, first: int) -> None:
        """A row of this size counts, but somebody should know of it."""
        rejected = {bad.line for bad in self.scanned.listed}
        for number, (start, end) in enumerate(batch.spans(), first):
            if end - start >= LONG and number not in rejected:
                reason = f"the line is {(end - start) / 1e6:,.0f} MB long"
                self._list(number, batch.offset + start, reason, is_kept=True)

    def _take(self, batch: Batch, lines: list[tuple[int, int, int]], *, is_utf8: bool) -> None:
        """Take in these lines of a batch, each with its number, start and end, one by one."""
        take = self._rollouts.take if self._read is None else self._add
        for number, start, end in lines:
            line = batch.data[start:end]
            try:
                if not is_utf8:
                    _check_utf8(line)
                take(line)
            except BadLine as error:
                if bytes(line).strip():
                    reason = str(error) if batch.is_terminated else f"torn last line ({error})"
                    self._list(number, batch.offset + start, reason, is_kept=False)
            else:
                self._places.append((number, batch.offset + start, end - start))

    def _add(self, line: Line) -> None:
        """A line that is no rollout."""
        assert self._read is not None
        fixed, numbers, texts, notes = self._read(line)
        place = len(self._fixed)
        self._fixed.append(fixed)
        if notes:
            self._notes[place] = notes
        if numbers:
            self._columns.add_numbers(place, numbers)
        if texts:
            self._columns.add_texts(place, texts)

    def _note(self, row: int, text: str) -> None:
        self._notes.setdefault(row, []).append(text)

    def _list(self, line: int, offset: int, reason: str, *, is_kept: bool) -> None:
        self.scanned.noted += is_kept
        self.scanned.rejected += not is_kept
        if len(self.scanned.listed) < MAX_LISTED:
            bad = BadLineAt(file=self._file, line=line, offset=offset, reason=reason, is_kept=is_kept)
            self.scanned.listed.append(bad)

    def flush(self) -> None:
        """Write the chunk as a part."""
        tables = []
        if self._fast:
            tables.append(self._fast_table(self._fast))
        if self._places:
            tables.append(self._table())
        if not tables:
            return
        table = tables[0]
        if len(tables) > 1:
            spelled = [_spelled_out(table) for table in tables]
            table = pa.concat_tables(spelled, promote_options="default").sort_by("line")
        for name in table.column_names:
            found = discovered_name(name)
            if found is not None:
                counts = self.scanned.numbers if found[0] == "n" else self.scanned.texts
                _count(counts, found[1], table.num_rows - table.column(name).null_count)
        path = f"{self._stem}-{len(self.scanned.parts)}.parquet"
        pq.write_table(table, path, **_WRITING)
        keys = key_span(table.column("task"), table.column("rollout")) if self._kind == "rollouts" else None
        self.scanned.parts.append(Part(path, self.scanned.rows, table.num_rows, keys))
        self.scanned.rows += table.num_rows
        self._clear()

    def _table(self) -> pa.Table:
        """The lines read one by one."""
        numbers, texts = self._columns.finish(len(self._places), self._note)
        columns: dict[str, pa.Array] = {}
        for name, values in zip(PLACES, zip(*self._places, strict=True), strict=True):
            columns[name] = arrow_array(np.array(values, dtype=np.int64))
        columns |= self._rollout_columns() if self._read is None else self._other_columns()
        for row, text in _no_keys(numbers):
            self._note(row, text)
        for row, notes in self._notes.items():
            line, offset, _ = self._places[row]
            self._list(line, offset, "; ".join(sorted(notes)), is_kept=True)
        words = {name: pa.array(values, pa.string()) for name, values in texts.items()}
        return _named(columns, numbers, words)

    def _fast_table(self, rows: fast.FastRollouts) -> pa.Table:
        """The ordinary rollouts; or the ordinary tasks, which have fewer columns."""

        notes: dict[tuple[int, int], list[str]] = {}

        def note(line: int, offset: int, text: str) -> None:
            notes.setdefault((line, offset), []).append(text)

        count = len(rows)
        made, numbers, texts = rows.finish(note, has_usage=self._kind == "rollouts")
        for row, text in _no_keys(numbers):
            note(made["line"][row].as_py(), made["offset"][row].as_py(), text)
        for (line, offset), told in notes.items():
            self._list(line, offset, "; ".join(sorted(told)), is_kept=True)
        columns = {name: pa.nulls(count, ARROW_TYPES[kind]) for name, kind in COLUMNS[self._kind].items()}
        wanted = {*columns, *PLACES, *(PIECES if self._kind == "rollouts" else ())}
        known = {name: values for name, values in made.items() if name in wanted}
        return _named(columns | known, numbers, texts)

    def _rollout_columns(self) -> dict[str, pa.Array]:
        types = COLUMNS["rollouts"]
        made = self._rollouts.columns()
        columns = {name: pa.nulls(len(self._places), ARROW_TYPES[kind]) for name, kind in types.items()}
        return columns | {name: pa.array(values, ARROW_TYPES[types[name]]) for name, values in made.items()}

    def _other_columns(self) -> dict[str, pa.Array]:
        types = COLUMNS[self._kind].items()
        return {
            name: _fixed_column(values, kind)
            for (name, kind), values in zip(types, zip(*self._fixed, strict=True), strict=True)
        }


def _named(
    columns: dict[str, pa.Array], numbers: Mapping[str, NDArray[np.float64]], texts: Mapping[str, pa.Array]
) -> pa.Table:
    """A table of the fixed columns and the discovered ones; the keys of a row are fixed columns, where a kind has them."""
    named = dict(columns)
    numbers = {**numbers, "reward": _given(numbers, texts)} if "reward" in numbers else numbers
    for name, values in numbers.items():
        key = _KEY_COLUMNS.get(name)
        if key in named:
            named[key] = _whole_numbers(values)
        elif key is None:
            named[stored_name("n", name)] = arrow_floats(values)
    named |= {stored_name("t", name): words for name, words in texts.items() if name not in _KEY_COLUMNS}
    return pa.table(named)


def _given(numbers: Mapping[str, NDArray[np.float64]], texts: Mapping[str, pa.Array]) -> NDArray[np.float64]:
    """The rewards that a verifier gave; NeMo Gym writes one beside the word that nothing was verified, or that verifying failed."""
    reward = numbers["reward"]
    if SKIPPED in numbers:
        reward = np.where(numbers[SKIPPED] == 1, np.nan, reward)
    if FAILURE_KEY in texts:
        known = np.asarray(texts[FAILURE_KEY].is_valid(), dtype=np.bool_)
        reward = np.where(known, np.nan, reward)
    return reward


def _spelled_out(table: pa.Table) -> pa.Table:
    """Words as texts instead of numbers and a dictionary, so that tables that number them differently can be joined."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table


_KEY_COLUMNS = {TASK_KEY: "task", ROLLOUT_KEY: "rollout", ATTEMPT_KEY: "attempt"}
_WRITING: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["agent", "model", "finish_reason", "verifier", "fingerprint", "mode"],
    # A query may skip parts by the tasks they hold, hardly by anything else.
    "write_statistics": ["task", "rollout"],
    # Without Arrow's own schema, words are read as texts again, however they were written.
    "store_schema": False,
}


def _count(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more


def _no_keys(numbers: Mapping[str, NDArray[np.float64]]) -> list[tuple[int, str]]:
    """Rows with a key that is no whole number, and what to say of them; the key is missing there."""
    found = [(name, numbers[name]) for name in _KEY_COLUMNS if name in numbers]
    return [
        (row, text.format(name=name, value=values[row]))
        for name, values in found
        for is_none, text in ((values % 1 > 0, NOT_WHOLE), (np.abs(values) >= 2**53, TOO_LARGE))
        for row in np.flatnonzero(is_none).tolist()
    ]


def _whole_numbers(found: NDArray[np.float64]) -> pa.Array:
    missing = np.isnan(found) | (np.abs(found) >= 2**53) | (found % 1 > 0)
    return arrow_array(np.where(missing, 0, found).astype(np.int64), missing)


def _check_utf8(line: memoryview) -> None:
    try:
        bytes(line).decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"invalid UTF-8 (byte {error.start})") from None


def _fixed_column(values: tuple[object, ...], kind: ColumnType) -> pa.Array:
    try:
        return pa.array(values, ARROW_TYPES[kind])
    except (pa.ArrowInvalid, OverflowError):  # an index beyond 64 bits
        return pa.array([value if _fits(value) else None for value in values], ARROW_TYPES[kind])


def _fits(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63
