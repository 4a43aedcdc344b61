"""Printing: data to stdout, messages to stderr."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from rollforge.errors import RollforgeError
from rollforge.text_safety.visible import visible

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> Console:
    """Return the console for results, on stdout."""
    from rollforge.cli.render.safe_console import PlainConsole

    return PlainConsole(highlight=False, soft_wrap=True, emoji=False)


@cache
def err() -> Console:
    """Return the console for progress, notes and errors, on stderr."""
    from rollforge.cli.render.safe_console import PlainConsole

    return PlainConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def help_console() -> Console:
    """Return the console for help, which wraps at the terminal's width."""
    from rollforge.cli.render.safe_console import PlainConsole

    return PlainConsole()


encode_json = msgspec.json.Encoder(decimal_format="number").encode
"""JSON as commands write it: decimals of a database become numbers."""


def print_json(value: object) -> None:
    """Print one JSON object on stdout, and nothing else."""
    data = msgspec.json.format(encode_json(value), indent=2)
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """Print one line on stderr, above a live display."""
    if "rich.console" in sys.modules:
        err().print(text, markup=False)
    else:
        sys.stderr.write(f"{visible(text)}\n")


def report_error(error: RollforgeError) -> None:
    """Print the error and the next step, without traceback."""
    say(f"error: {error}")
    if error.hint:
        say(f"  next: {error.hint}")
