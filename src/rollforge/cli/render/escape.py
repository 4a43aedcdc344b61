"""Escapes control characters in text from models and files: an escape sequence could clear the reader's terminal."""

from __future__ import annotations

_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SIGNS |= {
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}
_ENDS = {0x09: 0x2409, 0x0A: 0x240A}


def visible(text: str) -> str:
    """Replace control and bidirectional characters by visible signs; keep line breaks and tabs."""
    return text if text.isprintable() else text.translate(_SIGNS)


def in_one_line(text: str) -> str:
    """Replace line breaks and tabs too, for a cell of a table."""
    return text if text.isprintable() else text.translate(_SIGNS).translate(_ENDS)
