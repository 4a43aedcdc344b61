"""This module holds lines that are read one by one, by Python: rollouts that are not ordinary, and all other kinds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rollforge.index.arrays import ARROW_TYPES, arrow_array
from rollforge.index.columns import Columns
from rollforge.index.facts import Line, Reader
from rollforge.index.kinds import COLUMNS, PLACES, ColumnType, Kind
from rollforge.index.others import reader_of
from rollforge.index.part_tables import named, without_keys
from rollforge.index.rollouts import Rollouts


class SlowLines:
    """The lines of one chunk."""

    def __init__(self, kind: Kind, reader: Reader) -> None:
        self._kind: Kind = kind
        self._places: list[tuple[int, int, int]] = []
        self._fixed: list[tuple[object, ...]] = []
        self._columns = Columns()
        self._notes: dict[int, list[str]] = {}
        self._rollouts = Rollouts(reader, self._columns, self._note)
        self._read = None if kind == "rollouts" else reader_of(kind)

    def __len__(self) -> int:
        return len(self._places)

    def take(self, line: Line, number: int, offset: int) -> None:
        """One more line.

        Raises:
            BadLine: it is no row; nothing of it is used.
        """
        if self._read is None:
            self._rollouts.take(line)
            self._rollouts.read()
        else:
            fixed, numbers, texts, notes = self._read(line)
            place = len(self._fixed)
            self._fixed.append(fixed)
            if notes:
                self._notes[place] = notes
            if numbers:
                self._columns.add_numbers(place, numbers)
            if texts:
                self._columns.add_texts(place, texts)
        self._places.append((number, offset, len(line)))

    def _note(self, row: int, text: str) -> None:
        self._notes.setdefault(row, []).append(text)

    def table(self) -> tuple[pa.Table, dict[tuple[int, int], list[str]]]:
        """All of them, and what is odd about some, by line and offset."""
        numbers, texts = self._columns.finish(len(self), self._note)
        columns: dict[str, pa.Array] = {}
        for name, values in zip(PLACES, zip(*self._places, strict=True), strict=True):
            columns[name] = arrow_array(np.array(values, dtype=np.int64))
        columns |= self._rollout_columns() if self._read is None else self._other_columns()
        for row, text in without_keys(numbers):
            self._note(row, text)
        words = {name: pa.array(values, pa.string()) for name, values in texts.items()}
        notes = {self._places[row][:2]: told for row, told in self._notes.items()}
        return named(columns, numbers, words), notes

    def _rollout_columns(self) -> dict[str, pa.Array]:
        types = COLUMNS["rollouts"]
        made = self._rollouts.columns()
        columns = {name: pa.nulls(len(self), ARROW_TYPES[kind]) for name, kind in types.items()}
        return columns | {name: pa.array(values, ARROW_TYPES[types[name]]) for name, values in made.items()}

    def _other_columns(self) -> dict[str, pa.Array]:
        types = COLUMNS[self._kind].items()
        return {
            name: _fixed_column(values, kind)
            for (name, kind), values in zip(types, zip(*self._fixed, strict=True), strict=True)
        }


def is_utf8(data: memoryview) -> bool:
    """Whether a block is valid UTF-8: told for many lines at once, because splitting JSON does not look inside texts."""
    ends = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _fixed_column(values: tuple[object, ...], kind: ColumnType) -> pa.Array:
    try:
        return pa.array(values, ARROW_TYPES[kind])
    except (pa.ArrowInvalid, OverflowError):  # an index beyond 64 bits
        return pa.array([value if _fits(value) else None for value in values], ARROW_TYPES[kind])


def _fits(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63
