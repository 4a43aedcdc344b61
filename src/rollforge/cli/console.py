"""This module is the console for people: it shows what models and files say, and obeys none of it.

A text with escape sequences could colour, clear or rename the reader's terminal; here its control characters appear as signs. What
is written for programs (JSON, CSV, raw lines) does not pass through it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SIGNS |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}


def visible(text: str) -> str:
    """The text with a sign in place of every control character but tabs and ends of lines."""
    return text.translate(_SIGNS)


class PlainConsole(Console):
    """A console whose texts hold no control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What to write; a text is cleaned before it is laid out, so that its lines keep their width."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)
        elif isinstance(renderable, str):
            renderable = visible(renderable)
        return super().render(renderable, options)
