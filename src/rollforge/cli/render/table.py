"""Plain reports: lines and tables of a few columns, bold or dim on a terminal, never wrapped in a pipe.

For commands that take half a second: importing rich's live tables would add a tenth of that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple
from unicodedata import combining, east_asian_width

from rollforge.cli.render.escape import in_one_line

Style = Literal["plain", "bold", "dim", "warning"]

GAP = "  "
NARROWEST = 20
"""Narrowest width, in columns, at which wrapped text is readable."""

_CODES = {"plain": "", "bold": "\x1b[1m", "dim": "\x1b[2m", "warning": "\x1b[33m"}


def put(text: str = "", style: Style = "plain") -> None:
    """Print one line on stdout, escaped."""
    _write(_styled(in_one_line(text), style))


class TableColumn(NamedTuple):
    """A column of a table."""

    name: str
    is_right: bool = False
    style: Style = "plain"


class Grid:
    """Table without borders; the last column wraps at the terminal's width."""

    def __init__(self, *columns: TableColumn) -> None:
        self._columns = columns
        self._rows: list[Sequence[str]] = []

    def add(self, *cells: str) -> None:
        """Add a row."""
        self._rows.append([in_one_line(text) for text in cells])

    def put(self) -> None:
        """Print the table."""
        names = [column.name for column in self._columns]
        sizes = [max(map(cells_of, texts)) for texts in zip(names, *self._rows, strict=True)]
        self._put_row(names, sizes, ["dim"] * len(names))
        for row in self._rows:
            self._put_row(row, sizes, [column.style for column in self._columns])

    def _put_row(self, cells: Sequence[str], sizes: Sequence[int], styles: Sequence[Style]) -> None:
        placed = []
        for text, size, style, column in zip(cells, sizes, styles, self._columns, strict=True):
            space = " " * (size - cells_of(text))
            placed.append(space + _styled(text, style) if column.is_right else _styled(text, style) + space)
        before = sum(sizes[:-1]) + len(GAP) * (len(sizes) - 1)
        first, *others = wrapped(cells[-1], before)
        if others:
            placed[-1] = _styled(first, styles[-1])
        _write(GAP.join(placed).rstrip())
        for more in others:
            _write(" " * before + _styled(more, styles[-1]))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")


def cells_of(text: str) -> int:
    """Return the display width of a text."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)


def wrapped(text: str, before: int) -> list[str]:
    """Wrap a text to the terminal's width minus `before` columns; a list is broken between its items."""
    room = (terminal_width() or 0) - before
    if room < NARROWEST:
        return [text]
    between = GAP if GAP in text else " "
    lines: list[str] = []
    for piece in text.split(between):
        if lines and cells_of(lines[-1] + between + piece) <= room:
            lines[-1] += between + piece
        else:
            lines.append(piece)
    return lines


def terminal_width() -> int | None:
    """Return the terminal's width; None without a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _styled(text: str, style: Style) -> str:
    has_styles = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"{_CODES[style]}{text}\x1b[0m" if has_styles and text and style != "plain" else text
