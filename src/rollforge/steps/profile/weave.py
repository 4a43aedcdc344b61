"""This module writes JSON lines from columns of numbers, or of what is JSON already, so that a row never becomes Python objects.

A profile has a hundred numbers per task: spelling each where it belongs takes a fraction of what making and encoding a record per
task does. Where there was no compiler at installation, `weave_slowly` does the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

_compiled: Callable[[int, list[Column], bytearray], int] | None
try:
    from rollforge.steps.profile._weave import weave as _compiled
except ImportError:
    _compiled = None

_encode = msgspec.json.encode
_split = msgspec.json.Decoder(list[Raw]).decode


class Piece(NamedTuple):
    """What stands in a file for each row, and the words before it."""

    before: bytes
    begins: bytes
    """The places in the file, a 64-bit number per row."""
    sizes: bytes
    """As many sizes; 0 where a row has no such piece."""


class Pieces(NamedTuple):
    """Values that stand in a file: of each row one or several pieces, none where the row has no value."""

    file: int
    """A descriptor to read from."""
    pieces: list[Piece]


NO_NUMBER = np.iinfo(np.int64).min
"""Stands among whole numbers for one that is missing, as NaN does among others."""

Values = NDArray[np.float64] | NDArray[np.int64] | bytes | list[bytes | None] | Pieces
"""Numbers, or a JSON array with a value per row, or the value of each row, or where it stands.

What is null, None or no number leaves the key out of the row.
"""


class Column(NamedTuple):
    """One key of all rows."""

    before: bytes
    """The key and its colon, and what else stands before each value."""
    values: Values
    after: bytes = b""


def column(key: str, values: Values) -> Column:
    """A column whose values are written as they are."""
    return Column(_encode(key) + b":", values)


def weave(rows: int, columns: Sequence[Column], into: bytearray) -> int:
    """Write the rows as JSON lines over `into`, which grows as needed; how many bytes they take.

    Other threads go on meanwhile, which leave the columns and `into` alone. Raises EOFError when a file ends before one of the
    pieces it should hold.
    """
    return (_compiled or weave_slowly)(rows, list(columns), into)


def weave_slowly(rows: int, columns: list[Column], into: bytearray) -> int:
    """The same without a compiler."""
    placed = []
    for before, values, after in columns:
        texts = _texts(values, rows)
        if len(texts) != rows:
            raise ValueError("a column has another number of values than there are rows")
        placed.append([text and text != b"null" and before + text + after for text in texts])
    lines = b"".join(b"{" + b",".join(filter(None, row)) + b"}\n" for row in zip(*placed, strict=True))
    into[: len(lines)] = lines
    return len(lines)


def _texts(values: Values, rows: int) -> list[bytes | None]:
    if isinstance(values, list):
        return values
    if isinstance(values, np.ndarray):
        missing = NO_NUMBER if values.dtype == np.int64 else None
        return [None if number == missing else _encode(number) for number in values.tolist()]
    if isinstance(values, bytes):
        return [bytes(one) for one in _split(values)]
    texts = [b""] * rows
    for before, begins, sizes in values.pieces:
        places = zip(
            np.frombuffer(begins, np.int64).tolist(), np.frombuffer(sizes, np.int64).tolist(), strict=True
        )
        for row, (begin, size) in enumerate(places):
            if size > 0:
                texts[row] += before + _read(values.file, begin, size)
    return [*texts]


def _read(file: int, begin: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.pread(file, size - len(data), begin + len(data))
        if not more:
            raise EOFError("the file has become shorter")
        data += more
    return data
