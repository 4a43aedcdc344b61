"""The records that `validate` returns, in the form of its JSON output."""

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
    """JSON path, such as `responses_create_params.input[1].role`."""
    text: str
    """What is wrong, and what is expected."""
    hint: str
    """How to fix it."""
    level: Level = "error"


class LineFault(Struct, kw_only=True):
    """A fault with its line."""

    line: int
    path: str
    text: str
    hint: str
    level: Level = "error"
    file: str | msgspec.UnsetType = msgspec.UNSET
    """Of a run of shards: the file that contains the line."""


class FileReport(Struct, kw_only=True):
    """Report on one file."""

    path: str
    kind: FileKind
    rows: int
    bad: list[LineFault]
    """Faults by line: the first 1,000, then the first of each further kind; `errors` counts all."""
    errors: int
    bad_lines: int
    warnings: list[LineFault]
    metrics: FileSummary
    fixed: str | None = None
    rejects: str | None = None


class ValidationReport(Struct, kw_only=True):
    """Report on all files."""

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
    """A wrong value for a message: the value if short, else its type."""
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 60 else kind_of(value)


def is_json(text: str) -> bool:
    """Whether the text is valid JSON for any reader."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
