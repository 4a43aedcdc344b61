"""A rich console that prints text from models and files without obeying its markup or escape sequences.

Output for programs (JSON, CSV, raw lines) bypasses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rollforge.text_safety.visible import visible


class PlainConsole(Console):
    """Console that escapes control characters and ignores a closed pipe (`| head`)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape text before layout, so that line widths stay correct."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)
        elif isinstance(renderable, str):
            renderable = visible(renderable)
        return super().render(renderable, options)

    def on_broken_pipe(self) -> None:
        """Discard further output."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
