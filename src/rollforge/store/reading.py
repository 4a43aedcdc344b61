"""Reading JSON that somebody else, or a crash, may have damaged: one list of exceptions, one message with the place.

A damaged line ends in bad JSON, bad UTF-8, nesting that exhausts the stack, or a value that does not fit into memory. Every reader
catches `UNREADABLE`, so that none of the four is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from rollforge.errors import DataError

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)
"""Everything that decoding JSON from untrusted bytes can raise."""

BLOCK_BYTES = 4 << 20


def reason_of(error: BaseException) -> str:
    """Why bytes cannot be read, in words for a user."""
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
        DataError: the file is damaged or has another shape; the message names the file. A missing file raises `FileNotFoundError`.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except UNREADABLE as error:
        raise DataError(f"{path}: {reason_of(error)}", hint=hint) from error


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file with their newlines, and a last one without; nothing for a missing file."""
    if not path.exists():
        return
    with path.open("rb", buffering=BLOCK_BYTES) as file:
        yield from file
