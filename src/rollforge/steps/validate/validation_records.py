"""The records `validate` returns, in the shape of its JSON output."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from rollforge.steps.validate.file_metrics import FileSummary

FileKind = Literal["tasks", "rollouts", "dataset", "empty"]
Level = Literal["error", "warning"]


class RowFault(NamedTuple):
    """One fault in a row."""

    path: str
    """JSON path, like `responses_create_params.input[1].role`."""
    text: str
    """What is wrong, and what was expected."""
    hint: str
    """What to do about it."""
    level: Level = "error"


class LineFault(Struct, kw_only=True):
    """A fault with its line."""

    line: int
    path: str
    text: str
    hint: str
    level: Level = "error"


class FileReport(Struct, kw_only=True):
    """One file."""

    path: str
    kind: FileKind
    rows: int
    bad: list[LineFault]
    """What is wrong, by line: the first 1,000, and after them the first of each further kind; all are counted in `errors`."""
    errors: int
    bad_lines: int
    warnings: list[LineFault]
    metrics: FileSummary
    fixed: str | None = None
    rejects: str | None = None


class ValidationReport(Struct, kw_only=True):
    """All files."""

    ok: bool
    files: list[FileReport]


def kind_of(value: object) -> str:
    """A JSON value's kind in words."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """A wrong value for a message: itself when it is short, else its kind."""
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 60 else kind_of(value)


def is_json(text: str) -> bool:
    """Whether the text holds JSON that any reader takes."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
