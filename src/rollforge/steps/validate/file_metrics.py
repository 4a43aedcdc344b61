"""Counts over a file: examples, tools, turns, words, temperature, and every other field."""

from __future__ import annotations

import json
from math import isfinite, sqrt
from sys import float_info

from rollforge.records import PARAMS_KEY, JsonFields

MAX_DISTINCT = 1_000_000


class Running:
    """Count, mean, least, greatest and sample std of numbers as they come (Welford)."""

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

    def record(self) -> JsonFields:
        if not self.n:
            return {"n": 0, "mean": None, "min": None, "max": None, "std": None}
        is_known = self.n > 1 and isfinite(self._squares)  # the squares of huge numbers are beyond a float
        std = sqrt(self._squares / (self.n - 1)) if is_known else None
        return {"n": self.n, "mean": self._mean, "min": self._min, "max": self._max, "std": std}


class Distinct:
    """How many texts, and how many different ones."""

    def __init__(self) -> None:
        self.n = 0
        self._seen: set[int] = set()

    def add(self, value: str) -> None:
        self.n += 1
        if len(self._seen) < MAX_DISTINCT:
            self._seen.add(hash(value))

    def record(self) -> JsonFields:
        return {"total_count": self.n, "unique_count": len(self._seen)}


class FileMetrics:
    """The metrics of one file, row by row."""

    def __init__(self) -> None:
        self._examples = 0
        self._known = {name: Running() for name in ("tools", "turns", "words", "temperature")}
        self._numbers: dict[str, Running] = {}
        self._texts: dict[str, Distinct] = {}

    def add(self, row: JsonFields) -> None:
        """Count one good row."""
        self._examples += 1
        params = _params_of(row)
        said = (
            params if params is not None else {key: row[key] for key in (*_ASKED, *_ANSWERED) if key in row}
        )
        self._known["tools"].add(_tools_in((params if params is not None else row).get("tools")))
        self._known["turns"].add(max((_user_turns(said.get(key)) for key in _ASKED), default=0))
        self._known["words"].add(len(json.dumps(said, default=str).split()))
        temperature = said.get("temperature")
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

    def record(self) -> JsonFields:
        """The metrics; words are white-space separated words of the parameters written as JSON, a proxy for tokens."""
        fields = {name: running.record() for name, running in self._numbers.items()}
        fields |= {name: distinct.record() for name, distinct in self._texts.items() if name not in fields}
        return {
            "examples": self._examples,
            **{name: running.record() for name, running in self._known.items()},
            "fields": fields,
        }


_ASKED = ("input", "messages", "conversations", "context", "prompt", "instruction")
_ANSWERED = ("completion", "completions", "chosen", "rejected", "output", "text")
"""Where a row for a trainer has its text, of which the first kind holds the user's turns."""


def _params_of(row: JsonFields) -> JsonFields | None:
    """The request: the row's own, or that of the rollout inside it."""
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
    """How many tools, in a list or in a text that holds one."""
    if isinstance(tools, str) and tools:
        tools = json.loads(tools)
    return len(tools) if isinstance(tools, list) else 0
