"""Converts lines to columns, one line at a time: the specification for tests of the compiled reader.

It reads every kind of line. If installed, the compiled reader (`native_reader.py`) handles ordinary rollouts and tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw, Struct

from rollforge.conversations.typed_rows import (
    INVOCATIONS_KEY,
    TASK_WRAPPERS,
    TYPED_ID_KEY,
    from_invocations,
    task_id,
)
from rollforge.index.arrow import ARROW_TYPES, arrow_array
from rollforge.index.parts import KEY_COLUMNS, NOT_WHOLE, TOO_LARGE, NotedLines, part_table, too_large
from rollforge.index.row_facts import (
    NO_ANSWER,
    Note,
    OwnFacts,
    UnreadableLine,
    agent_name,
    component_numbers,
    describe_answer,
    describe_chat_answer,
    own_facts,
    params_hash,
    read_response,
    split_line,
    usage_numbers,
)
from rollforge.index.schema import COLUMNS, LINE_COLUMNS, MAX_TEXT, Kind
from rollforge.index.text_hash import prompt_hash, split_messages
from rollforge.records import FAILURE_KEY, OWN_KEY, PARAMS_KEY, TERMINAL_KEY
from rollforge.store import UNREADABLE

MAX_MESSAGE = 1000
"""Most characters of a failure message in the index."""

_Scalar = int | float | bool | str | list[Raw] | dict[str, Raw] | None
_decode_scalar = msgspec.json.Decoder(_Scalar).decode
_CHAT_KEYS = ("messages", "prompt", "completion")


class ReadRow(Struct):
    """One line as values for columns."""

    fixed: dict[str, Any]
    """Values of the kind's fixed columns; a missing column is null."""
    numbers: dict[str, float]
    texts: dict[str, str]
    notes: list[str]
    """Irregularities that do not invalidate the row."""

    def take_number(self, name: str) -> float | None:
        """Take a discovered number for use as a fixed column."""
        return self.numbers.pop(name, None)

    def take_text(self, name: str) -> str | None:
        """Take a discovered text for use as a fixed column."""
        return self.texts.pop(name, None)


def read_rollout(line: bytes) -> ReadRow:
    """Read a line of a rollouts file. Raises `UnreadableLine` if it is not a row."""
    values, notes = split_line(line)
    note = notes.append
    _unwrap_rollout(values)
    params, response = values.pop(PARAMS_KEY, None), values.pop("response", None)
    agent, own, components = (values.pop(key, None) for key in ("agent_ref", OWN_KEY, "reward_components"))
    chat = {key: values.pop(key) for key in _CHAT_KEYS if key in values} if params is None else {}
    row = _scalars(values, notes)
    row.fixed["agent"] = None if agent is None else agent_name(agent, note)
    row.fixed["prompt_hash"] = None if params is None else params_hash(params, note)
    answer, usage = NO_ANSWER, Raw()
    read = None if response is None else read_response(response, note)
    if read is not None:
        answer, usage = describe_answer(read), read.usage
    if chat:
        row.fixed["prompt_hash"], answer = _read_chat(chat, note) or (None, answer)
    row.fixed |= answer._asdict()
    row.fixed |= msgspec.structs.asdict(OwnFacts() if own is None else own_facts(own, note))
    nested = [] if components is None else component_numbers(components, note)
    nested += usage_numbers(usage)  # usage overrides a field of the same name, as in NeMo Gym
    for name, number in sorted(nested, key=lambda pair: "." in pair[0]):
        row.numbers[name] = number
    return row


def _unwrap_rollout(values: dict[str, Raw]) -> None:
    """Convert a typed rollout, whose trajectory is in `invocations`, to the classic format."""
    if INVOCATIONS_KEY in values and bytes(values.get("response", b"null")) == b"null":
        unwrapped = from_invocations(_decoded_any(values[INVOCATIONS_KEY]))
        if unwrapped is not None:
            values[PARAMS_KEY], values["response"] = (Raw(msgspec.json.encode(value)) for value in unwrapped)
    if TYPED_ID_KEY in values and "task_id" not in values:
        values["task_id"] = Raw(msgspec.json.encode(task_id(_decoded_any(values[TYPED_ID_KEY]))))


def _unwrap_task(values: dict[str, Raw]) -> None:
    """Convert a typed task, whose fields are in `resolved_row` or `task_input`, to the classic format."""
    for key in TASK_WRAPPERS:
        inner = _decoded(values[key]) if key in values else None
        if isinstance(inner, dict):
            del values[key]
            values.update({name: raw for name, raw in inner.items() if name not in values})
            values["task_id"] = Raw(
                msgspec.json.encode(task_id(_decoded_any(values.get("task_id", Raw(b"null")))))
            )


def _decoded_any(raw: Raw) -> Any:
    """Decode a value to plain Python; None if it cannot be decoded."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None


def _read_chat(chat: dict[str, Raw], note: Note) -> tuple[int | None, Any] | None:
    """Prompt hash and answer of a chat row; None, and a note, if it is malformed."""
    try:
        if "messages" in chat:
            prompt_messages, answer_messages = split_messages(msgspec.json.decode(chat["messages"]))
        else:
            prompt_messages = _as_messages(chat.get("prompt"), "user")
            answer_messages = _as_messages(chat.get("completion"), "assistant")
    except (TypeError, msgspec.DecodeError) as error:
        note(f"messages: {error}")
        return None
    return prompt_hash(prompt_messages), describe_chat_answer(answer_messages)


def _as_messages(raw: Raw | None, role: str) -> list[Any]:
    """`prompt` or `completion` of a chat row (a text or a list of messages) as messages."""
    value = None if raw is None else msgspec.json.decode(raw)
    if value is None:
        return []
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def read_task(line: bytes) -> ReadRow:
    """Read a line of a tasks file."""
    values, notes = split_line(line)
    _unwrap_task(values)
    params, agent = values.pop(PARAMS_KEY, None), values.pop("agent_ref", None)
    values.pop("response", None)
    row = _scalars(values, notes)
    row.fixed["agent"] = None if agent is None else agent_name(agent, notes.append)
    row.fixed["prompt_hash"] = None if params is None else params_hash(params, notes.append)
    return row


def read_failure(line: bytes) -> ReadRow:
    """Read a line of a failures file."""
    values, notes = split_line(line)
    agent, message = values.pop("agent_ref", None), values.pop("message", None)
    for key in ("response", PARAMS_KEY):
        values.pop(key, None)
    row = _scalars(values, notes)
    terminal = row.take_number(TERMINAL_KEY)
    names = (row.take_text("class"), row.take_text(FAILURE_KEY))
    row.fixed |= {
        "agent": None if agent is None else agent_name(agent, notes.append),
        "class": names[0] or names[1],
        "boundary": row.take_text("boundary"),
        "message": _message(message),
        "is_terminal": None if terminal is None else bool(terminal),
        "at": row.take_number("at"),
        "seconds": row.take_number("seconds"),
    }
    return row


def _message(raw: Raw | None) -> str | None:
    text = None if raw is None else _decoded(raw)
    return text[:MAX_MESSAGE] if isinstance(text, str) and text else None


def read_verdict(line: bytes) -> ReadRow:
    """Read a line of a verdicts file."""
    values, notes = split_line(line)
    for key in ("agent_ref", "response", PARAMS_KEY, "shared"):
        values.pop(key, None)
    row = _scalars(values, notes)
    row.fixed |= {name: row.take_text(name) for name in ("verifier", "fingerprint", "mode", "error")}
    row.fixed |= {name: row.take_number(name) for name in ("at", "seconds")}
    return row


READERS: dict[Kind, Callable[[bytes], ReadRow]] = {
    "rollouts": read_rollout,
    "tasks": read_task,
    "failures": read_failure,
    "verdicts": read_verdict,
}


class _Unreadable:
    """Placeholder for a value that cannot be decoded: a number beyond float range, half a surrogate pair."""


_UNREADABLE = _Unreadable()
_KIND_NAMES: dict[type, str] = {
    str: "text",
    list: "an array",
    dict: "an object",
    _Unreadable: "one that cannot be read",
}


def _decoded(raw: Raw) -> object:
    try:
        return _decode_scalar(raw)
    except UNREADABLE:
        return _UNREADABLE


def _scalars(values: dict[str, Raw], notes: list[str]) -> ReadRow:
    """Top-level numbers and short texts of a row; its indices become fixed columns."""
    row = ReadRow({}, {}, {}, notes)
    for key, raw in values.items():
        value = _decoded(raw)
        number = _number(value) if isinstance(value, int | float) else None
        if number is not None and key in KEY_COLUMNS:
            _take_key(row, key, number)
        elif number is not None:
            row.numbers[key] = number
        elif value is not None and (key in KEY_COLUMNS or key == "reward"):
            kind = _Unreadable if isinstance(value, int | float) else type(value)
            notes.append(f"{key}: expected a number, got {_KIND_NAMES[kind]}")
        if isinstance(value, str) and len(value) <= MAX_TEXT and key not in KEY_COLUMNS:
            row.texts[key] = value
    return row


def _number(value: float) -> float | None:
    """A number as a float; None if it is beyond float range."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _take_key(row: ReadRow, key: str, number: float) -> None:
    if number % 1:
        row.notes.append(NOT_WHOLE.format(name=key, value=number))
    elif too_large(number):
        row.notes.append(TOO_LARGE.format(name=key, value=number))
    else:
        row.fixed[KEY_COLUMNS[key]] = int(number)


class PythonRows:
    """Collects the rows of one chunk that Python reads."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._read = READERS[kind]
        self._spans: list[tuple[int, int, int]] = []
        self._rows: list[ReadRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, line: bytes, number: int, offset: int) -> None:
        """Read one more line. Raises `UnreadableLine` if it is not a row."""
        self._rows.append(self._read(line))
        self._spans.append((number, offset, len(line)))

    def table(self) -> tuple[pa.Table, NotedLines]:
        """A table of all rows, and notes by (line, offset)."""
        columns: dict[str, pa.Array] = {}
        for name, values in zip(LINE_COLUMNS, zip(*self._spans, strict=True), strict=True):
            columns[name] = arrow_array(np.array(values, dtype=np.int64))
        for name, kind in COLUMNS[self._kind].items():
            columns[name] = pa.array([row.fixed.get(name) for row in self._rows], ARROW_TYPES[kind])
        numbers = {
            name: np.array([row.numbers.get(name, math.nan) for row in self._rows])
            for name in _names([row.numbers for row in self._rows])
        }
        texts = {
            name: pa.array([row.texts.get(name) for row in self._rows], pa.string())
            for name in _names([row.texts for row in self._rows])
        }
        read_rows = zip(self._spans, self._rows, strict=True)
        notes = {(number, offset): row.notes for (number, offset, _), row in read_rows if row.notes}
        return part_table(columns, numbers, texts), notes


def _names(rows: list[dict[str, Any]]) -> list[str]:
    """Keys of all rows, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


__all__ = [
    "PythonRows",
    "ReadRow",
    "UnreadableLine",
    "read_failure",
    "read_rollout",
    "read_task",
    "read_verdict",
]
