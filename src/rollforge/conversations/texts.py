"""Byte-level helpers for JSON lines: escaping line separators, checking UTF-8, comparing encoded strings."""

from __future__ import annotations

import msgspec

_SEPARATORS = [
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
    ("\x85".encode(), b"\\u0085"),
]
"""Encoding and escape of each separator."""


def on_one_line(line: bytes) -> bytes:
    """Escape the Unicode line separators in a JSON line: some readers split lines at them. They occur inside strings only."""
    for encoded, escape in _SEPARATORS:
        # Search for single bytes first: that is many times faster than a search for several.
        if encoded[:1] in line and encoded[-1:] in line and encoded in line:
            line = line.replace(encoded, escape)
    return line


def is_spelled_once(raw: msgspec.Raw) -> bool:
    """Whether a JSON string has no optional escapes, so that equal texts have equal bytes."""
    data = bytes(raw)
    return b"\\u" not in data and b"\\/" not in data


def is_utf8(line: bytes) -> bool:
    """Whether the bytes are valid UTF-8."""
    if line.isascii():
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
