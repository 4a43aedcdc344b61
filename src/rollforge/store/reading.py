"""Reads possibly damaged JSON: one list of exceptions, and one error message with the location.

A damaged line causes bad JSON, bad UTF-8, nesting that exhausts the stack, or a value that exceeds memory. Every reader catches
`UNREADABLE`, which covers all four.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar, overload

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
STEP_BACK = 1 << 16
"""Bytes read at a time towards the start of a file."""
LONGEST_LINE = 256 << 20
"""No longer line is held in memory; the index has the same limit."""
NO_LINE = f"NUL bytes, or a line longer than {LONGEST_LINE >> 20} MB"
"""What a line that begins with NUL is: of a hole in the file, or from `bounded_lines`."""


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


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is held as a whole; one above `LONGEST_LINE` counts as one that does not fit into memory."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  (a pipe must not block)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > LONGEST_LINE:
            raise MemoryError
        return file.read()


@overload
def read_json(path: Path, *, hint: str | None = None) -> Any: ...
@overload
def read_json(path: Path, type: type[T], *, hint: str | None = None) -> T: ...
def read_json(path: Path, type: Any = Any, *, hint: str | None = None) -> Any:
    """The value of a whole JSON file.

    Raises:
        DataError: the file is damaged, is not a file, or has unexpected contents; the message names the file. A missing file
            raises `FileNotFoundError`.
    """
    try:
        return decode_json(read_whole(path), type)
    except UNREADABLE as error:
        raise DataError(f"{path}: {reason_of(error)}", hint=hint) from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise DataError(f"{path}: {error.strerror}", hint=hint) from error


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


FILE_NAME = r"^(?!\.\.?$)[^/\0]+$"
FileName = Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
"""Name of a file in a folder, as a manifest records it: never a path that leads out of the folder."""

_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot represent."""
_LONGEST_INTEGER = len(str(1 << 64))
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


def line_start(file: BinaryIO, end: int) -> int:
    """Offset after the last newline before `end`, where a line begins that is perhaps unfinished."""
    while end:
        start = max(0, end - STEP_BACK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def bounded_lines(file: BinaryIO, length: int = sys.maxsize) -> Iterator[bytes]:
    """The lines of an open file, of its next `length` bytes.

    One longer than `LONGEST_LINE` (a lost disk's gigabytes of NUL, an archive that unpacks to them) is a NUL, which nobody can read.
    """
    while length > 0 and (line := file.readline(min(LONGEST_LINE, length))):
        length -= len(line)
        if len(line) < LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        is_ended = False
        while not is_ended and length > 0 and (line := file.readline(min(BLOCK_BYTES, length))):
            length -= len(line)
            is_ended = line.endswith(b"\n")
        yield b"\0\n" if is_ended else b"\0"
