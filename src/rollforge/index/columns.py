"""This module gathers the discovered values of many rows and reads them together, column by column.

Rows with the same keys are one batch: their values are joined into one JSON array of arrays, read in one call and turned by
`zip`, so that no Python runs per value. A text in a number field is missing there and counted; lists and objects are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from rollforge.index.facts import KEYS, MAX_TEXT

Floats = NDArray[np.float64]

MAX_VALUE = 4 * MAX_TEXT
"""Bytes of a value that is still looked at; longer ones are texts, lists and objects that make no column."""

_decode_rows = msgspec.json.Decoder(
    list[list[int | float | bool | str | list[Raw] | dict[str, Raw] | None]]
).decode
_decode_usages = msgspec.json.Decoder(
    list[dict[str, int | float | dict[str, int | float | None] | None] | None]
).decode
_NUMBERS = {float, int, bool, type(None)}


class _Cached(Struct, forbid_unknown_fields=True, gc=False):
    cached_tokens: int | None = None


class _Reasoned(Struct, forbid_unknown_fields=True, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, forbid_unknown_fields=True, gc=False):
    """Usage as nearly every server writes it; any other shape takes the general way."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None


_decode_usual = msgspec.json.Decoder(list[_Usage | None]).decode

Note = Callable[[int, str], None]
"""Takes down what is odd about the row with this number."""


class Columns:
    """Discovered numbers and texts of one chunk of rows."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, ...], tuple[list[int], list[bytes]]] = {}
        self._usages: list[bytes] = []
        self._usage_rows: list[int] = []
        self._numbers: dict[str, list[float | None]] = {}
        self._texts: dict[str, list[str | None]] = {}

    def add_scalars(self, row: int, values: dict[str, Raw]) -> None:
        """Unread top-level values."""
        raws = list(values.values())
        keys = tuple(values)
        if sum(map(len, raws)) > 4 * MAX_VALUE:
            kept = [(key, raw) for key, raw in values.items() if len(raw) < MAX_VALUE]
            keys, raws = tuple(key for key, _ in kept), [raw for _, raw in kept]
        batch = self._batches.get(keys)
        if batch is None:
            batch = self._batches[keys] = ([], [])
        batch[0].append(row)
        batch[1].append(b",".join(raws))

    def add_usage(self, row: int, usage: Raw | bytes) -> None:
        """An unread usage object."""
        self._usages.append(bytes(usage))
        self._usage_rows.append(row)

    def add_numbers(self, row: int, pairs: Sequence[tuple[str, float]]) -> None:
        """Numbers read already."""
        _place(self._numbers, pairs, row)

    def add_texts(self, row: int, pairs: Sequence[tuple[str, str]]) -> None:
        """Texts read already."""
        _place(self._texts, pairs, row)

    def finish(self, count: int, note: Note) -> tuple[dict[str, Floats], dict[str, list[str | None]]]:
        """Every column over `count` rows: numbers with NaN, texts with None for missing."""
        numbers: dict[str, Floats] = {}
        texts = {name: [*values, *[None] * (count - len(values))] for name, values in self._texts.items()}
        for keys, (rows, payloads) in self._batches.items():
            for key, values in zip(keys, _columns_of(payloads, len(keys)), strict=True):
                _scatter(key, values, rows, count, numbers, texts, note)
        self._read_usages()
        for name, found in self._numbers.items():
            known = _floats([*found, *[None] * (count - len(found))])
            earlier = numbers.get(name)
            numbers[name] = known if earlier is None else np.where(np.isnan(known), earlier, known)
        return numbers, texts

    def _read_usages(self) -> None:
        """Usage overrides a field of the same name, as in NeMo Gym."""
        if not self._usages:
            return
        try:
            self._read_usual(_decode_usual(b"[" + b",".join(self._usages) + b"]"))
        except msgspec.ValidationError:
            self._read_unusual()

    def _read_usual(self, usages: list[_Usage | None]) -> None:
        known = [_NO_USAGE if usage is None else usage for usage in usages]
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            self._add_usage_column(name, [getattr(usage, name) for usage in known])
        cached = [usage.input_tokens_details for usage in known]
        reasoned = [usage.output_tokens_details for usage in known]
        self._add_usage_column(
            "input_tokens_details.cached_tokens", [one.cached_tokens if one else None for one in cached]
        )
        self._add_usage_column(
            "output_tokens_details.reasoning_tokens",
            [one.reasoning_tokens if one else None for one in reasoned],
        )

    def _add_usage_column(self, name: str, values: list[int | None]) -> None:
        if all(value is None for value in values):
            return
        rows = self._usage_rows
        column = self._numbers.setdefault(name, [])
        column.extend([None] * (rows[-1] + 1 - len(column)))
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                column[row] = value

    def _read_unusual(self) -> None:
        try:
            usages = _decode_usages(b"[" + b",".join(self._usages) + b"]")
        except msgspec.DecodeError:
            usages = [_tolerant_usage(usage) for usage in self._usages]
        numbers = self._numbers
        for row, usage in zip(self._usage_rows, usages, strict=True):
            if usage is None:
                continue
            for name, value in usage.items():
                if type(value) is dict:
                    _place(
                        numbers,
                        [(f"{name}.{inner}", one) for inner, one in value.items() if one is not None],
                        row,
                    )
                elif value is not None:
                    column = numbers.get(name)
                    if column is None:
                        column = numbers[name] = []
                    if len(column) < row:
                        column.extend([None] * (row - len(column)))
                    column.append(value)  # type: ignore[arg-type]


_NO_USAGE = _Usage()


def _tolerant_usage(usage: bytes) -> Any:
    value = msgspec.json.decode(usage)
    if not isinstance(value, dict):
        return None
    return {name: number for name, number in value.items() if isinstance(number, int | float)}


def _columns_of(payloads: list[bytes], width: int) -> list[tuple[Any, ...]]:
    """The values of a batch, one tuple per key."""
    if not width:
        return []
    try:
        rows = _decode_rows(b"[[" + b"],[".join(payloads) + b"]]")
    except msgspec.DecodeError:  # a number that no float holds, a lone surrogate: found row by row
        rows = [_tolerant_row(payload, width) for payload in payloads]
    return list(zip(*rows, strict=True))


def _tolerant_row(payload: bytes, width: int) -> list[Any]:
    try:
        return _decode_rows(b"[[" + payload + b"]]")[0]
    except msgspec.DecodeError:
        raws = msgspec.json.decode(b"[" + payload + b"]", type=list[Raw])
        return [_tolerant_value(raw) for raw in raws]


def _tolerant_value(raw: Raw) -> Any:
    try:
        return _decode_rows(b"[[" + bytes(raw) + b"]]")[0][0]
    except msgspec.DecodeError:
        return None


def _scatter(
    key: str,
    values: tuple[Any, ...],
    rows: list[int],
    count: int,
    numbers: dict[str, Floats],
    texts: dict[str, list[str | None]],
    note: Note,
) -> None:
    """Put a batch's values of one key where they belong."""
    kinds = set(map(type, values))
    if str in kinds:
        column = texts.get(key)
        if column is None:
            column = texts[key] = [None] * count
        for row, value in zip(rows, values, strict=True):
            if type(value) is str and len(value) <= MAX_TEXT:
                column[row] = value
    if not kinds <= _NUMBERS:
        if key in KEYS or key == "reward":
            _note_wrong_kinds(key, values, rows, note)
        values = tuple(value if type(value) in _NUMBERS else None for value in values)
    if kinds & {float, int, bool}:
        found = _floats(values)
        if len(rows) == count and key not in numbers:
            numbers[key] = found
            return
        if key not in numbers:
            numbers[key] = np.full(count, np.nan)
        numbers[key][rows] = found


def _note_wrong_kinds(key: str, values: tuple[Any, ...], rows: list[int], note: Note) -> None:
    words: dict[type, str] = {str: "text", list: "an array", dict: "an object"}
    for row, value in zip(rows, values, strict=True):
        if type(value) not in _NUMBERS:
            note(row, f"{key}: expected a number, got {words.get(type(value), type(value).__name__)}")


def _floats(values: Sequence[float | None]) -> Floats:
    try:
        found: Floats = np.array(values, dtype=np.float64)
    except OverflowError:  # an integer beyond what a float holds
        found = np.array([_float(value) for value in values], dtype=np.float64)
    found[~np.isfinite(found)] = np.nan
    return found


def _float(value: float | None) -> float:
    try:
        return float("nan") if value is None else float(value)
    except OverflowError:
        return float("nan")


def _place(columns: dict[str, list[Any]], pairs: Sequence[tuple[str, Any]], row: int) -> None:
    """Append each value to its column, first filling up the rows that did not have it; the last of a name counts."""
    for name, value in pairs:
        column = columns.get(name)
        if column is None:
            column = columns[name] = []
        missing = row - len(column)
        if missing > 0:
            column.extend([None] * missing)
        elif missing < 0:
            column.pop()
        column.append(value)
