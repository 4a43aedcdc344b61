"""Reads possibly damaged JSON: one list of exceptions, and one error message with the location.

A damaged line causes bad JSON, bad UTF-8, nesting that exhausts the stack, or a value that exceeds memory. Every reader catches
`UNREADABLE`, which covers all four.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, overload

import msgspec

from rollforge.errors import DataError
from rollforge.json_shapes import RowJson
from rollforge.runtime.typed_decoding import decode_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)
"""Every exception that decoding untrusted JSON bytes can raise."""

BLOCK_BYTES = 4 << 20
LONGEST_LINE = 256 << 20
"""Size limit of a line in memory, the same as in the index."""


def reason_of(error: BaseException) -> str:
    """Why bytes are unreadable, for an error message."""
    match error:
        case UnicodeDecodeError():
            return f"not UTF-8 (byte {error.object[error.start]:#04x} at position {error.start})"
        case RecursionError():
            return "nested too deeply"
        case MemoryError():
            return "too large for this machine's memory"
        case _:
            return str(error)


@overload
def read_json(path: Path, *, hint: str | None = None) -> Any: ...
@overload
def read_json(path: Path, type: type[T], *, hint: str | None = None) -> T: ...
def read_json(path: Path, type: Any = Any, *, hint: str | None = None) -> Any:
    """The value of a whole JSON file.

    Raises:
        DataError: the file is damaged or has unexpected contents; the message names the file. A missing file raises
            `FileNotFoundError`.
    """
    try:
        return decode_json(path.read_bytes(), type)
    except UNREADABLE as error:
        raise DataError(f"{path}: {reason_of(error)}", hint=hint) from error


@contextmanager
def parquet_file(
    path: Path, *, columns: tuple[str, ...] = (), hint: str | None = None
) -> Iterator[pq.ParquetFile]:
    """Open a possibly damaged Parquet file; errors while the caller reads it also become a `DataError` with the path.

    Args:
        columns: required columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            lacking = [name for name in columns if name not in file.schema_arrow.names]
            if lacking:
                raise DataError(f"{path}: the column {lacking[0]!r} is missing", hint=hint)
            yield file
    except (pa.ArrowException, OSError, *UNREADABLE) as error:
        raise DataError(f"{path}: the Parquet file is damaged: {reason_of(error)}", hint=hint) from error


_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot represent."""
_LONGEST_INTEGER = 20
"""Length of the longest 64-bit integer in characters."""
_HINT = "find it: rollforge validate RUN"


def read_row(line: bytes) -> RowJson:
    """Decode a row leniently, so that any model output is readable.

    NaN and numbers beyond 64 bits become null, and half a surrogate pair `⟨U+D800⟩`.

    Raises:
        DataError: the line is not JSON.
    """
    try:
        row: RowJson = msgspec.json.decode(line)
    except UNREADABLE:
        row = _read_leniently(line)
    return row


def _read_leniently(line: bytes) -> RowJson:
    numbers: dict[str, Any] = {
        "parse_constant": lambda _: None,
        "parse_float": _finite,
        "parse_int": _in_range,
    }
    try:
        text = json.dumps(json.loads(line, **numbers), ensure_ascii=False)
        text = _HALF.sub(lambda half: f"⟨U+{ord(half[0]):04X}⟩", text)
        row: RowJson = json.loads(text)
    except (ValueError, *UNREADABLE) as error:
        raise DataError(f"a line cannot be read: {reason_of(error)}", hint=_HINT) from error
    return row


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _in_range(text: str) -> int | None:
    if len(text) > _LONGEST_INTEGER:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else None


def lines_of(path: Path) -> Iterator[bytes]:
    """Lines of a file with newlines, the last one possibly without; none for a missing file."""
    if not path.exists():
        return
    with path.open("rb", buffering=BLOCK_BYTES) as file:
        yield from bounded_lines(file)


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines of an open file; one longer than `LONGEST_LINE` (such as gigabytes of NUL after a disk failure) becomes an unreadable
    NUL.
    """
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        is_ended = False
        while not is_ended and (line := file.readline(BLOCK_BYTES)):
            is_ended = line.endswith(b"\n")
        yield b"\0\n" if is_ended else b"\0"
