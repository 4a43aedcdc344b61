"""This module says how a command's parameters are called on the command line, and in which group of the help they stand.

It says no more, so that a command's module is loaded without cyclopts, which takes as long to load as numpy: `plain.py` reads most
command lines. A parameter whose type is a dataclass stands for flags of its own, one per field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """A heading of the help."""

    name: str
    sort_key: int


class Parameter(NamedTuple):
    """What cyclopts is told about a parameter; whatever is None is left to it."""

    name: str | Sequence[str] | None = None
    group: Group | None = None
    negative: tuple[str, ...] | None = None
    show: bool | None = None
    show_default: bool | None = None
    allow_leading_hyphen: bool | None = None
