"""This module reads the lines of tasks, failures and verdicts, of which there are far fewer than the rollouts of `rollouts.py`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollforge.index.facts import Line, Reader, Row, sort_scalars, split_line
from rollforge.index.kinds import Kind
from rollforge.records import (
    ATTEMPT_KEY,
    FAILURE_KEY,
    PARAMS_KEY,
    ROLLOUT_KEY,
    TASK_KEY,
    TERMINAL_KEY,
)


def reader_of(kind: Kind) -> Callable[[Line], Row]:
    """A function from a line that is no rollout to its row; it raises `BadLine` for a line that is none."""
    reader = Reader()
    read = {"tasks": _task, "failures": _failure, "verdicts": _verdict}[kind]
    return lambda line: read(reader, bytes(line))


class _Scalars:
    """The scalars of a line that is not a rollout."""

    def __init__(self, reader: Reader, line: bytes) -> None:
        values, self.notes = split_line(line)
        self.params = values.pop(PARAMS_KEY, None)
        agent = values.pop("agent_ref", None)
        values.pop("response", None)
        self.numbers: list[tuple[str, float]] = []
        self.texts: list[tuple[str, str]] = []
        self.keys: dict[str, int] = {}
        sort_scalars(values, self.numbers, self.texts, self.keys, self.notes)
        self.agent = reader.agent(bytes(agent), self.notes.append) if agent is not None else None
        self._number_by_name = dict(self.numbers)
        self._text_by_name = dict(self.texts)

    def number(self, name: str) -> float | None:
        return self._number_by_name.get(name)

    def text(self, name: str) -> str | None:
        return self._text_by_name.get(name)

    def row(self, fixed: tuple[object, ...], *taken: str) -> Row:
        """What was not taken as a fixed column stays as a discovered one."""
        numbers = [pair for pair in self.numbers if pair[0] not in taken]
        texts = [pair for pair in self.texts if pair[0] not in taken]
        return Row(fixed, numbers, texts, self.notes)


def _task(reader: Reader, line: bytes) -> Row:
    read = _Scalars(reader, line)
    hashed = None if read.params is None else reader.prompt_hash(bytes(read.params), read.notes.append)
    return read.row((read.keys.get(TASK_KEY), read.agent, hashed))


def _failure(reader: Reader, line: bytes) -> Row:
    read = _Scalars(reader, line)
    terminal = read.number(TERMINAL_KEY)
    fixed = (
        read.keys.get(TASK_KEY),
        read.keys.get(ROLLOUT_KEY),
        read.keys.get(ATTEMPT_KEY),
        read.agent,
        read.text("class") or read.text(FAILURE_KEY),
        read.text("boundary"),
        read.text("message") or _long_message(line),
        None if terminal is None else bool(terminal),
        read.number("at"),
        read.number("seconds"),
    )
    taken = ("class", FAILURE_KEY, "boundary", "message", TERMINAL_KEY, "at", "seconds")
    return read.row(fixed, *taken)


class _Message(msgspec.Struct):
    message: str | None = None


def _long_message(line: bytes) -> str | None:
    """A message too long for a column, cut."""
    try:
        message = msgspec.json.decode(line, type=_Message).message
    except msgspec.DecodeError:
        return None
    return message[:1000] if message else None


def _verdict(reader: Reader, line: bytes) -> Row:
    read = _Scalars(reader, line)
    fixed = (
        read.keys.get(TASK_KEY),
        read.keys.get(ROLLOUT_KEY),
        read.text("verifier"),
        read.text("fingerprint"),
        read.text("mode"),
        read.text("error"),
        read.number("at"),
        read.number("seconds"),
    )
    return read.row(fixed, "verifier", "fingerprint", "mode", "error", "at", "seconds", "shared")
