"""This module gathers the discovered values of many rows and reads them together, column by column.

Rows with the same keys are one batch: their values are joined into one JSON array of arrays, read in one call and turned by
`zip`, so that no Python runs per value. A text in a number field is missing there and counted; lists and objects are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from rollforge.index.facts import KEYS, MAX_TEXT

Floats = NDArray[np.float64]
Objects = NDArray[np.object_]
Rows = NDArray[np.int64]

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


_decode_usual = msgspec.json.Decoder(list[_Usage]).decode

Note = Callable[[int, str], None]
"""Takes down what is odd about the row with this number."""


class Columns:
    """Discovered numbers and texts of one chunk of rows, which may come in any order."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, ...], tuple[list[int], list[bytes]]] = {}
        self._usages: list[tuple[int, bytes]] = []
        self._numbers: dict[str, tuple[list[int], list[float]]] = {}
        self._texts: dict[str, tuple[list[int], list[str]]] = {}

    def batch(self, keys: tuple[str, ...]) -> tuple[list[int], list[bytes]]:
        """Where rows with these keys are added: their numbers, and their unread values joined by commas."""
        return self._batches.setdefault(keys, ([], []))

    def add_usage(self, row: int, usage: bytes) -> None:
        """An unread usage object."""
        self._usages.append((row, usage))

    def add_numbers(self, row: int, pairs: Sequence[tuple[str, float]]) -> None:
        """Numbers read already."""
        _place(self._numbers, pairs, row)

    def add_texts(self, row: int, pairs: Sequence[tuple[str, str]]) -> None:
        """Texts read already."""
        _place(self._texts, pairs, row)

    def finish(self, count: int, note: Note) -> tuple[dict[str, Floats], dict[str, Objects]]:
        """Every column over `count` rows: numbers with NaN, texts with None for missing."""
        numbers: dict[str, Floats] = {}
        texts: dict[str, Objects] = {}
        for name, (where, words) in self._texts.items():
            _column(texts, name, count)[where] = words
        for keys, (some, payloads) in self._batches.items():
            rows = np.array(some, dtype=np.int64)
            for key, values in zip(keys, _columns_of(payloads, len(keys)), strict=True):
                _scatter(key, values, rows, count, numbers, texts, note)
        self._read_usages()
        for name, (where, found) in self._numbers.items():
            _place_known(numbers, name, count, where, found)
        return numbers, texts

    def _read_usages(self) -> None:
        """Usage overrides a field of the same name, as in NeMo Gym."""
        if not self._usages:
            return
        joined = b"[" + b",".join([usage for _, usage in self._usages]) + b"]"
        try:
            self._read_usual(_decode_usual(joined))
        except msgspec.ValidationError:
            self._read_unusual(joined)

    def _read_usual(self, usages: list[_Usage]) -> None:
        rows = [row for row, _ in self._usages]
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            self._add_usage_column(name, rows, [getattr(usage, name) for usage in usages])
        cached = [usage.input_tokens_details for usage in usages]
        self._add_usage_column(
            "input_tokens_details.cached_tokens", rows, [one.cached_tokens if one else None for one in cached]
        )
        reasoned = [usage.output_tokens_details for usage in usages]
        self._add_usage_column(
            "output_tokens_details.reasoning_tokens",
            rows,
            [one.reasoning_tokens if one else None for one in reasoned],
        )

    def _add_usage_column(self, name: str, rows: list[int], values: list[int | None]) -> None:
        column = self._numbers.setdefault(name, ([], []))
        if None in values:
            known = [place for place, value in enumerate(values) if value is not None]
            rows, values = [rows[place] for place in known], [values[place] for place in known]
        if rows:
            column[0].extend(rows)
            column[1].extend(values)  # type: ignore[arg-type]
        elif not column[0]:
            del self._numbers[name]

    def _read_unusual(self, joined: bytes) -> None:
        try:
            usages = _decode_usages(joined)
        except msgspec.DecodeError:
            usages = [_tolerant_usage(usage) for _, usage in self._usages]
        for (row, _), usage in zip(self._usages, usages, strict=True):
            for name, value in (usage or {}).items():
                if type(value) is dict:
                    pairs = [(f"{name}.{inner}", one) for inner, one in value.items() if one is not None]
                    _place(self._numbers, pairs, row)
                elif value is not None:
                    _place(self._numbers, [(name, value)], row)


def _place(
    columns: dict[str, tuple[list[int], list[Any]]], pairs: Sequence[tuple[str, Any]], row: int
) -> None:
    """Take down each value with its row; the last of a name counts."""
    for name, value in pairs:
        column = columns.get(name)
        if column is None:
            column = columns[name] = ([], [])
        column[0].append(row)
        column[1].append(value)


def _place_known(
    numbers: dict[str, Floats], name: str, count: int, rows: list[int], values: Sequence[float]
) -> None:
    """Put numbers over what is there already; one that no float holds leaves it."""
    column = numbers.get(name)
    if column is None:
        column = numbers[name] = np.full(count, np.nan)
    found = _floats(values)
    where = np.asarray(rows)
    if np.isnan(found).any():
        where, found = where[~np.isnan(found)], found[~np.isnan(found)]
    column[where] = found


def _column(texts: dict[str, Objects], name: str, count: int) -> Objects:
    column = texts.get(name)
    if column is None:
        column = texts[name] = np.full(count, None, dtype=object)
    return column


def _tolerant_usage(usage: bytes) -> Any:
    """What can be read of a usage, number by number, however deep it stands: what is odd about one costs no other."""
    with suppress(msgspec.DecodeError):
        return _decode_usages(b"[" + usage + b"]")[0]
    read: dict[str, float] = {}
    unread = [("", usage)]
    while unread:  # not by recursion: a line may nest as deep as Python does
        before, outer = unread.pop()
        for name, value in _members(outer).items():
            if isinstance(number := _tolerant_value(value), int | float):
                read[before + name] = number
            else:
                unread.append((f"{before}{name}.", bytes(value)))
    return read


def _members(value: bytes | Raw) -> dict[str, Raw]:
    """Of an object; of anything else none."""
    try:
        return msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return {}


def _columns_of(payloads: list[bytes], width: int) -> list[tuple[Any, ...]]:
    """The values of a batch, one tuple per key."""
    if not width or not payloads:
        return [()] * width
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


class _Unreadable:
    """Stands for a value that cannot be read: a number that no float holds, half a surrogate pair."""


def _tolerant_value(raw: Raw) -> Any:
    try:
        return _decode_rows(b"[[" + bytes(raw) + b"]]")[0][0]
    except msgspec.DecodeError:
        return _Unreadable()


def _scatter(
    key: str,
    values: tuple[Any, ...],
    rows: Rows,
    count: int,
    numbers: dict[str, Floats],
    texts: dict[str, Objects],
    note: Note,
) -> None:
    """Put a batch's values of one key where they belong."""
    kinds = set(map(type, values))
    if str in kinds:
        if kinds == {str} and max(map(len, values)) <= MAX_TEXT:
            _column(texts, key, count)[rows] = values
        else:
            short = [n for n, value in enumerate(values) if type(value) is str and len(value) <= MAX_TEXT]
            if short:
                _column(texts, key, count)[rows[short]] = [values[n] for n in short]
    if not kinds <= _NUMBERS:
        if key in KEYS or key == "reward":
            _note_wrong_kinds(key, values, rows, note)
        if kinds & {float, int, bool}:
            values = tuple([value if type(value) in _NUMBERS else None for value in values])
    if kinds & {float, int, bool}:
        if key not in numbers:
            numbers[key] = np.full(count, np.nan)
        numbers[key][rows] = _floats(values)


def _note_wrong_kinds(key: str, values: tuple[Any, ...], rows: Rows, note: Note) -> None:
    words: dict[type, str] = {
        str: "text", list: "an array", dict: "an object", _Unreadable: "one that cannot be read",
    }  # fmt: skip
    for row, value in zip(rows.tolist(), values, strict=True):
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
