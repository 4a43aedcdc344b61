"""Text from models and files as table cells: one line, without active terminal escape sequences."""

from __future__ import annotations

from rollforge.text_safety.visible import visible

_ENDS = {0x09: 0x2409, 0x0A: 0x240A}


def in_one_line(text: str) -> str:
    """Make control characters visible, line breaks and tabs too."""
    return text if text.isprintable() else visible(text).translate(_ENDS)
