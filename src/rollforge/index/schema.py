"""The columns of each kind of file in a run, and how they are named in the parts and in SQL.

Additional numbers and short texts are discovered row by row.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["rollouts", "tasks", "failures", "verdicts"]
ColumnType = Literal["int", "float", "bool", "text"]

MAX_TEXT = 256
"""Top-level texts longer than this are not indexed; shorter ones (an extracted answer, a difficulty) become columns."""

LINE_COLUMNS: dict[str, ColumnType] = {"line": "int", "offset": "int", "length": "int"}
"""Columns of every kind that locate the line."""

_ROLLOUTS: dict[str, ColumnType] = {
    "task": "int", "rollout": "int", "attempt": "int", "agent": "text", "prompt_hash": "int",
    "answer_hash": "int", "answer_chars": "int", "turns": "int", "tool_calls": "int", "finish_reason": "text",
    "is_truncated": "bool", "is_empty": "bool", "is_refusal": "bool", "error_text": "bool", "has_token_ids": "bool",
    "model": "text", "verifier": "text", "fingerprint": "text", "mode": "text",
    "started": "float", "seconds": "float", "verify_seconds": "float",
}  # fmt: skip
_TASKS: dict[str, ColumnType] = {"task": "int", "agent": "text", "prompt_hash": "int"}
_FAILURES: dict[str, ColumnType] = {
    "task": "int", "rollout": "int", "attempt": "int", "agent": "text", "class": "text", "boundary": "text",
    "message": "text", "is_terminal": "bool", "at": "float", "seconds": "float",
}  # fmt: skip
_VERDICTS: dict[str, ColumnType] = {
    "task": "int", "rollout": "int", "verifier": "text", "fingerprint": "text", "mode": "text", "error": "text",
    "at": "float", "seconds": "float",
}  # fmt: skip

COLUMNS: dict[Kind, dict[str, ColumnType]] = {
    "rollouts": _ROLLOUTS,
    "tasks": _TASKS,
    "failures": _FAILURES,
    "verdicts": _VERDICTS,
}


def stored_name(prefix: str, name: str) -> str:
    """Column name in the parts of a discovered number (prefix `n`) or text (`t`). It keeps `Accuracy` and `accuracy` apart, which
    SQL does not.
    """
    name = name.replace("\0", "\N{SYMBOL FOR NULL}")  # a NUL ends a name elsewhere
    capitals = ",".join(str(position) for position, letter in enumerate(name) if "A" <= letter <= "Z")
    return f"{prefix}^{capitals}:{name}" if capitals else f"{prefix}:{name}"


def discovered_name(column: str) -> tuple[str, str] | None:
    """Prefix and field of a column in the parts; None for a fixed column."""
    prefix, colon, name = column.partition(":")
    return (prefix[0], name) if colon else None


def quoted(name: str) -> str:
    """A name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"
