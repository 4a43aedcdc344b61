"""Counts over a file: examples, tools, turns, words, temperature, and every other field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, sqrt
from sys import float_info

from msgspec import Struct

from rollforge.records import PARAMS_KEY, JsonObject

MAX_DISTINCT = 1_000_000


class NumberSummary(Struct, frozen=True, kw_only=True):
    """Summary of a number over the rows that have it."""

    n: int
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None


class TextSummary(Struct, frozen=True, kw_only=True):
    """Number of texts of a field, and of distinct ones."""

    total_count: int
    unique_count: int


class FileSummary(Struct, frozen=True, kw_only=True):
    """Counts over a file. Words are white-space separated words of the parameters as JSON, a proxy for tokens."""

    examples: int
    tools: NumberSummary
    turns: NumberSummary
    words: NumberSummary
    temperature: NumberSummary
    fields: dict[str, NumberSummary | TextSummary]


class Running:
    """Running count, mean, minimum, maximum and sample standard deviation (Welford)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean = self._squares = 0.0
        self._min = self._max = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        self._min = value if self.n == 1 else min(self._min, value)
        self._max = value if self.n == 1 else max(self._max, value)
        gap = value - self._mean
        self._mean += gap / self.n
        self._squares += gap * (value - self._mean)

    def record(self) -> NumberSummary:
        if not self.n:
            return NumberSummary(n=0)
        is_known = self.n > 1 and isfinite(self._squares)  # the squares of huge numbers are beyond a float
        std = sqrt(self._squares / (self.n - 1)) if is_known else None
        return NumberSummary(n=self.n, mean=self._mean, min=self._min, max=self._max, std=std)


class Distinct:
    """Counts texts and distinct texts."""

    def __init__(self) -> None:
        self.n = 0
        self._seen: set[int] = set()

    def add(self, value: str) -> None:
        self.n += 1
        if len(self._seen) < MAX_DISTINCT:
            self._seen.add(hash(value))

    def record(self) -> TextSummary:
        return TextSummary(total_count=self.n, unique_count=len(self._seen))


class FileMetrics:
    """Running metrics of one file."""

    def __init__(self) -> None:
        self._examples = 0
        self._known = {name: Running() for name in ("tools", "turns", "words", "temperature")}
        self._numbers: dict[str, Running] = {}
        self._texts: dict[str, Distinct] = {}

    def add(self, row: Mapping[str, object]) -> None:
        """Add one valid row."""
        self._examples += 1
        params = _params_of(row)
        conversation_fields = (
            params if params is not None else {key: row[key] for key in (*_ASKED, *_ANSWERED) if key in row}
        )
        self._known["tools"].add(_tools_in((params if params is not None else row).get("tools")))
        self._known["turns"].add(
            max((_user_turns(conversation_fields.get(key)) for key in _ASKED), default=0)
        )
        self._known["words"].add(len(json.dumps(conversation_fields, default=str).split()))
        temperature = conversation_fields.get("temperature")
        if isinstance(temperature, int | float):
            self._known["temperature"].add(temperature)
        for name, value in row.items():
            if not name.startswith("_ng_") and name not in (PARAMS_KEY, "response", "messages", "tools"):
                self._add_field(name, value)

    def _add_field(self, name: str, value: object) -> None:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and abs(one) > float_info.max:
                continue
            if isinstance(one, int | float):
                self._numbers.setdefault(name, Running()).add(float(one))
            elif isinstance(one, str):
                self._texts.setdefault(name, Distinct()).add(one)

    def record(self) -> FileSummary:
        """The metrics of all rows added so far."""
        fields: dict[str, NumberSummary | TextSummary] = {
            name: running.record() for name, running in self._numbers.items()
        }
        for name, distinct in self._texts.items():
            fields.setdefault(name, distinct.record())
        summary_by_name = {name: running.record() for name, running in self._known.items()}
        return FileSummary(examples=self._examples, fields=fields, **summary_by_name)


_ASKED = ("input", "messages", "conversations", "context", "prompt", "instruction")
_ANSWERED = ("completion", "completions", "chosen", "rejected", "output", "text")
"""Keys with the text of a trainer's row; those of the first kind contain the user's turns."""


def _params_of(row: Mapping[str, object]) -> JsonObject | None:
    """The request of a row, or of the rollout inside it."""
    for holder in (row, row.get("rollout"), row.get("chosen")):
        params = holder.get(PARAMS_KEY) if isinstance(holder, dict) else None
        if isinstance(params, dict):
            return params
    return None


def _user_turns(prompt: object) -> int:
    if isinstance(prompt, str):
        return 1
    if not isinstance(prompt, list):
        return 0
    speakers = (item.get("role", item.get("from")) for item in prompt if isinstance(item, dict))
    return sum(1 for speaker in speakers if speaker in ("user", "human"))


def _tools_in(tools: object) -> int:
    """Number of tools, in a list or in a text that contains one."""
    if isinstance(tools, str) and tools:
        tools = json.loads(tools)
    return len(tools) if isinstance(tools, list) else 0
