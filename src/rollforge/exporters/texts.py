"""This module passes over whole texts as bytes: escapes what would end a line, shortens what a check need not read.

Such a pass reads every byte of a data set, so that it is compiled where rollforge was installed with a compiler (`_texts.c`). The
Python functions here write the same bytes and find the same faults, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec

from rollforge.exporters.times import looks_like_time
from rollforge.store.reading import UNREADABLE

__all__ = ["flat_outline", "is_spelled_once", "is_utf8", "on_one_line", "shorten"]

_SEPARATORS = [
    (b"\xa8", "\u2028".encode(), b"\\u2028"),
    (b"\xa9", "\u2029".encode(), b"\\u2029"),
    (b"\x85", "\x85".encode(), b"\\u0085"),
]
"""Last byte (one byte is found many times faster than several), spelling and escape of each."""


def python_on_one_line(line: bytes) -> bytes:
    """The line with what some readers take for the end of a line escaped; JSON has such characters inside texts only."""
    for last, spelled, escape in _SEPARATORS:
        if last in line and spelled in line:
            line = line.replace(spelled, escape)
    return line


def python_shorten(lines: memoryview | bytes) -> memoryview | bytes | None:
    """JSON lines whose long strings may be shorter ones, for a check that looks at no text; None when some string is not valid.

    Lines that can be decoded as a type before can be so after, and the other way round, where the type says nothing of what stands
    in long strings. Strings that differ may come to be equal. Here nothing is shortened: only whether all is UTF-8 is looked at.
    """
    return lines if is_utf8(lines) else None


def python_is_spelled_once(raw: msgspec.Raw) -> bool:
    """Whether the JSON string has no escape that could be written otherwise: then equal texts are equal bytes."""
    data = bytes(raw)
    return b"\\u" not in data and b"\\/" not in data


def python_flat_outline(text: str) -> Hashable | None:
    """The keys of a JSON object and the types behind them, when it has no object in it and all its values are harmless; else None.

    Harmless are texts that are no dates, whole numbers that survive any detour, and truth values. None says nothing about the object.
    """
    try:
        value = msgspec.json.decode(text)
    except (*UNREADABLE, UnicodeEncodeError):
        return None
    if not isinstance(value, dict) or not value or text.count(":") != len(value):
        return None  # a colon more may be a key that stands twice
    if not all(_is_harmless(item) for item in value.values()):
        return None
    return (*value, *map(type, value.values()))


def _is_harmless(item: object) -> bool:
    if isinstance(item, str):
        return not looks_like_time(item)
    return isinstance(item, int) and -(2**53) < item < 2**53


flat_outline: Callable[[str], Hashable | None]
try:
    from rollforge.exporters._texts import flat_outline, is_spelled_once, on_one_line, shorten
except ImportError:
    is_spelled_once, on_one_line, shorten = python_is_spelled_once, python_on_one_line, python_shorten
    flat_outline = python_flat_outline


def is_utf8(block: memoryview | bytes) -> bool:
    """Whether the bytes are UTF-8, at the speed of reading them."""
    import pyarrow as pa

    ends = pa.array([0, len(block)], pa.int32()).buffers()[1]
    try:
        pa.StringArray.from_buffers(1, ends, pa.py_buffer(block)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
