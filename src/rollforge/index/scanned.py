"""This module holds what a pass over a range of a file says of it, in the shape it is stored beside the parts."""

from __future__ import annotations

import msgspec

from rollforge.index.key_spans import KeySpan


class BadLineAt(msgspec.Struct, kw_only=True):
    """A line that is no row (or, when `is_kept`, a row with something odd about it), and where it stands."""

    file: str
    line: int
    offset: int
    reason: str
    is_kept: bool = False
    """The row counts; only what the reason names is missing."""


class Part(msgspec.Struct):
    """One Parquet file and where its rows stand in the range."""

    path: str
    first_row: int
    rows: int
    keys: KeySpan | None = None
    """Of rollouts, where each has a key of its own."""


class Scanned(msgspec.Struct, kw_only=True):
    """What a range held."""

    parts: list[Part] = []
    rows: int = 0
    lines: int = 0
    end: int = 0
    """The offset after the last line."""
    rejected: int = 0
    noted: int = 0
    listed: list[BadLineAt] = []
    numbers: dict[str, int] = {}
    """Discovered number columns, each with how many rows have it, in order of appearance."""
    texts: dict[str, int] = {}
