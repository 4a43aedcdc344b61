"""This module lists the kinds of file a run has (rollouts, tasks, failures, verdicts) and the columns each one gives.

Numbers and short texts beside these fixed columns are discovered, row by row.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["rollouts", "tasks", "failures", "verdicts"]
ColumnType = Literal["int", "float", "bool", "text"]

PLACES: dict[str, ColumnType] = {"line": "int", "offset": "int", "length": "int"}
"""Columns of every kind: where the line stands."""

PIECES = ("params_at", "params_size", "agent_at", "agent_size")
"""Where in the line `responses_create_params` and `agent_ref` stand: told by the compiled reader only, and not shown to people."""

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


def stored_name(prefix: str, name: str) -> str:
    """The column of a discovered number (`n`) or text (`t`) in the parts; SQL does not tell `Accuracy` from `accuracy`."""
    name = name.replace("\0", "\N{SYMBOL FOR NULL}")  # what ends a name elsewhere
    capitals = ",".join(str(place) for place, one in enumerate(name) if "A" <= one <= "Z")
    return f"{prefix}^{capitals}:{name}" if capitals else f"{prefix}:{name}"


def discovered_name(column: str) -> tuple[str, str] | None:
    """The prefix and the name behind a column of the parts; None for a fixed column."""
    prefix, colon, name = column.partition(":")
    return (prefix[0], name) if colon else None


COLUMNS: dict[Kind, dict[str, ColumnType]] = {
    "rollouts": _ROLLOUTS,
    "tasks": _TASKS,
    "failures": _FAILURES,
    "verdicts": _VERDICTS,
}
