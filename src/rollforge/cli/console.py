"""This module is the console for people: it shows what models and files say, and obeys none of it.

A text with escape sequences could colour, clear or rename the reader's terminal; here its control characters appear as signs. What
is written for programs (JSON, CSV, raw lines) does not pass through it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rollforge.cli.output import visible


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
