"""This module reads rollout lines many at a time: what a row says is taken while the row is at hand, and read together later.

A line is split into its top-level values without building anything nested. Lines come as views into a buffer that is soon written
over: whatever is kept is copied. The values of rows with the same keys are one batch for `Columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Raw

from rollforge.index import prompts
from rollforge.index.answers import (
    Answer,
    PartlyRead,
    Seen,
    answer_of_chat,
    answers_of,
    decode_response,
    look,
    tolerant_response,
)
from rollforge.index.columns import MAX_VALUE, Columns
from rollforge.index.facts import (
    Line,
    Own,
    Reader,
    read_components,
    read_own,
    repeated_notes,
    split_line,
    split_raw,
)
from rollforge.index.kinds import COLUMNS
from rollforge.records import OWN_KEY, PARAMS_KEY

FIXED = tuple(name for name in COLUMNS["rollouts"] if name not in ("task", "rollout", "attempt"))
"""Columns made here; task, rollout and attempt are top-level numbers like any other."""

assert ("agent", "prompt_hash", *Answer._fields, *Own._fields) == FIXED

TOGETHER = 256
"""Answers measured at a time: their texts are held until then."""

_CHAT = ("messages", "prompt", "completion")
_NO_OWN = Own()

Note = Callable[[int, str], None]


class _Group:
    """Rows that have the same keys in the same order: where each value stands."""

    def __init__(self, keys: tuple[str, ...], columns: Columns) -> None:
        beside = 1 + sum(len(key.encode()) for key in keys) + 4 * len(keys)
        self.compact = beside
        """Bytes of a line beside its values; any other number means white space, escapes, or a key twice."""
        self.spaced = beside + 2 * len(keys) - 1
        where = {key: place for place, key in enumerate(keys)}
        self.params = where.pop(PARAMS_KEY, None)
        self.response = where.pop("response", None)
        self.agent = where.pop("agent_ref", None)
        self.own = where.pop(OWN_KEY, None)
        self.components = where.pop("reward_components", None)
        self.chat = [where.pop(key, None) for key in _CHAT] if self.params is None else None
        self.is_special = self.chat is not None or self.own is not None or self.components is not None
        self.names = tuple(where)
        self.scalars = _picker(list(where.values()))
        self.rows, self.payloads = columns.batch(self.names)


def _picker(places: list[int]) -> Callable[[list[Raw]], Sequence[Raw]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda raws: [raws[place] for place in places]


class Rollouts:
    """The rollouts of one chunk: `take` each line, `read` what several have in common, then use the columns."""

    def __init__(self, reader: Reader, columns: Columns, note: Note) -> None:
        self._reader = reader
        self._columns = columns
        self._note = note
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._last_params = b""
        self._last_hash: int | None = None
        self._seen: list[Seen | None] = []
        self._chats: dict[int, Answer] = {}
        self._owns: dict[int, Own] = {}
        self._agents: list[str | None] = []
        self._hashes: list[int | None] = []
        self._answers: list[tuple[object, ...]] = []

    def take(self, line: Line) -> None:
        """One more row.

        Raises:
            BadLine: the line is no JSON object; nothing of it is used.
        """
        row = len(self._hashes)
        try:
            values = split_raw(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            values, notes = split_line(line)
            for text in notes:
                self._note(row, text)
            line = b""
        keys = tuple(values)
        group = self._groups.get(keys)
        if group is None:
            group = self._groups[keys] = _Group(keys, self._columns)
        raws = [*values.values()]
        beside = len(line) - sum(map(len, raws))
        if beside != group.compact and beside != group.spaced and line:
            for text in repeated_notes(line):
                self._note(row, text)
        payload = b",".join(group.scalars(raws))
        if len(payload) <= 4 * MAX_VALUE:
            group.rows.append(row)
            group.payloads.append(payload)
        else:
            self._take_short(row, group, raws)
        agent = None if group.agent is None else bytes(raws[group.agent])
        self._agents.append(None if agent is None else self._agent(row, agent))
        if group.response is None:
            self._seen.append(None)
        else:
            raw = raws[group.response]
            try:
                response = decode_response(raw)
            except msgspec.DecodeError as error:
                response = self._odd_response(row, raw, error)
            if response is not None and len(response.usage) > 4:
                self._columns.add_usage(row, bytes(response.usage))
            self._seen.append(None if response is None else look(response))
        found = None
        if group.params is not None:
            params = bytes(raws[group.params])
            if params != self._last_params:  # the rollouts of a task mostly follow each other
                self._last_params = params
                self._last_hash = self._hash(row, params)
            found = self._last_hash
        if group.is_special:
            found = self._take_special(row, group, raws, found)
        self._hashes.append(found)

    def _take_short(self, row: int, group: _Group, raws: list[Raw]) -> None:
        """The values of a row with a long one, without it."""
        pairs = zip(group.names, group.scalars(raws), strict=True)
        kept = [(name, raw) for name, raw in pairs if len(raw) < MAX_VALUE]
        rows, payloads = self._columns.batch(tuple(name for name, _ in kept))
        rows.append(row)
        payloads.append(b",".join([raw for _, raw in kept]))

    def _agent(self, row: int, data: bytes) -> str | None:
        try:
            return self._reader.name_by_agent[data]
        except KeyError:
            return self._reader.agent(data, lambda text: self._note(row, text))

    def _hash(self, row: int, data: bytes) -> int | None:
        noted: list[str] = []
        found = self._reader.prompt_hash(data, noted.append)
        for text in noted:
            self._note(row, text)
            self._last_params = b""  # the next row with these bytes is noted too
        return found

    def _odd_response(self, row: int, raw: Raw, error: msgspec.DecodeError) -> PartlyRead:
        self._note(row, f"response: {error}")
        return tolerant_response(raw)

    def _take_special(self, row: int, group: _Group, raws: list[Raw], found: int | None) -> int | None:
        """What few rows have; the hash of the prompt, which a row in chat form has elsewhere."""

        def note(text: str) -> None:
            self._note(row, text)

        if group.components is not None:
            self._columns.add_numbers(row, read_components(raws[group.components], note))
        if group.own is not None:
            self._owns[row] = read_own(raws[group.own], note)
        if group.chat is None or all(place is None for place in group.chat):
            return found
        messages, prompt, completion = [None if place is None else raws[place] for place in group.chat]
        try:
            if messages is not None:
                asked, answered = prompts.split_messages(msgspec.json.decode(messages))
            else:
                asked = prompts.as_messages(prompt, "user")
                answered = prompts.as_messages(completion, "assistant")
        except (TypeError, msgspec.DecodeError) as error:
            note(f"messages: {error}")
            return None
        self._chats[row] = answer_of_chat(answered)
        return prompts.prompt_hash(asked)

    def read(self, at_least: int = TOGETHER) -> None:
        """Read what was taken since the last time, once there is enough of it."""
        if len(self._seen) >= at_least:
            self._answers += answers_of(self._seen)
            self._seen = []

    def columns(self) -> dict[str, Sequence[Any]]:
        """The fixed columns of all rows taken."""
        self.read(0)
        count = len(self._hashes)
        for row, answer in self._chats.items():
            self._answers[row] = answer
        owns = [self._owns.get(row, _NO_OWN) for row in range(count)] if self._owns else [_NO_OWN] * count
        found: tuple[Sequence[Any], ...]
        found = (self._agents, self._hashes, *zip(*self._answers, strict=True), *zip(*owns, strict=True))
        return dict(zip(FIXED, found, strict=True))
