"""Progress display for Python callers: a live line in a notebook or a terminal, a few lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from rollforge.errors import UsageError
from rollforge.text_safety.visible import visible

Progress = Literal["auto", "notebook", "terminal", "plain", "none"]
Line = Callable[[], str]

FIRST_S, MOST_S = 2.0, 60.0
"""A log gets its first line after this time, then lines at growing intervals."""


class ProgressLine(Protocol):
    """A display that shows a line from time to time."""

    def show(self) -> None: ...
    def close(self) -> None: ...


def make_progress(kind: Progress, line: Line) -> ProgressLine:
    """The progress display of a kind; `auto` detects the environment. Its errors are ignored, since the run matters more."""
    return _Shielded(_display_of(kind, line))


def _display_of(kind: Progress, line: Line) -> ProgressLine:
    if kind == "auto":
        kind = "notebook" if _is_notebook() else "terminal" if sys.stderr.isatty() else "plain"
    match kind:
        case "notebook":
            return _Cell(line)
        case "terminal":
            return _Terminal(line)
        case "plain":
            return _Log(line)
        case "none":
            return _Silent()
    raise UsageError(f"progress={kind!r} is not understood", hint="auto, notebook, terminal, plain or none")


def _is_notebook() -> bool:
    """Whether the code runs in a notebook kernel; IPython in a terminal does not count."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class _Shielded:
    """A display whose errors do not reach the run."""

    def __init__(self, display: ProgressLine) -> None:
        self._display = display

    def show(self) -> None:
        self._try(self._display.show)

    def close(self) -> None:
        self._try(self._display.close)

    def _try(self, step: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):  # a display that fails must not end the run
            step()


class _Silent:
    def show(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing: there is no display to close."""


class _Cell:
    """A line below the notebook cell, updated in place; the last one stays."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._handle: Any = None
        self._last = ""
        self._shown_at = 0.0

    def show(self) -> None:
        if time.monotonic() - self._shown_at >= 0.5:
            self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        from importlib import import_module

        from rollforge.text_safety.markup import tag

        shell = import_module("IPython.display")  # by name: most users have no IPython

        text = visible(self._line())
        self._shown_at = time.monotonic()
        if text == self._last:
            return
        self._last = text
        shown = shell.HTML(str(tag("pre", text)))
        if self._handle is None:
            self._handle = shell.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class _Terminal:
    """A line on stderr, overwritten in place and erased at the end."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._width = 0

    def show(self) -> None:
        import shutil

        text = visible(self._line())[: max(20, shutil.get_terminal_size().columns - 1)]
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()


class _Log:
    """Lines on stderr, the first after two seconds, then at growing intervals of up to a minute."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._every = FIRST_S
        self._due = time.monotonic() + FIRST_S

    def show(self) -> None:
        if time.monotonic() < self._due:
            return
        self._every = min(MOST_S, self._every * 1.5)
        self._due = time.monotonic() + self._every
        sys.stderr.write(visible(self._line()) + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Write nothing: the caller gets the result."""
