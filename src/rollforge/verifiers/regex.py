"""Rewards an answer that a regular expression matches.

The pattern comes from the `pattern` option, or else from the row's field `pattern`. With an expected field (by default
`expected_answer`, if the row has it) the captured text must equal that field; otherwise a match suffices.

An answer on which the pattern backtracks for more than `answer_seconds` of CPU time gets reward 0 with `timed_out`: otherwise a
model could avoid a 0 by such answers.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.verifiers.building_blocks.answer_limit import (
    ANSWER_SECONDS,
    TIMED_OUT,
    AnswerTooSlow,
    answer_limit,
)
from rollforge.verifiers.building_blocks.verdict_fields import AnswerVerdictJson

needs = ()

Flag = Literal["ignorecase", "multiline", "dotall", "verbose", "ascii"]


class RegexOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for matching and comparison."""

    pattern: str | None = None
    """The regular expression; None takes the row's field `pattern`."""
    group: int | str | None = None
    """The group compared, by number or name; None is the first group that caught something, or the whole match without groups."""
    match: Literal["last", "first", "whole"] = "last"
    """Which match counts; `whole` asks that the pattern match the whole text."""
    expected: str | None = "expected_answer"
    """Task field the caught text must equal; None, or a row without it, asks only for a match."""
    flags: tuple[Flag, ...] = ()
    """Flags of the expression."""
    ignore_case: bool = False
    """Ignore case when comparing the caught text."""
    answer_seconds: float = ANSWER_SECONDS
    """CPU time for matching one answer."""


class Regex:
    """Judges by a regular expression."""

    options_type = RegexOptions

    def __init__(self, options: RegexOptions | None = None) -> None:
        self._options = options or RegexOptions()
        if self._options.pattern is not None:
            try:
                self._compiled(self._options.pattern)
            except (re.error, IndexError) as error:
                raise UsageError(
                    f"the pattern {self._options.pattern!r} does not work: {error}",
                    hint="a Python pattern, for example pattern='answer: (.*)'",
                ) from error

    def verify(self, task: Task, response: Response) -> AnswerVerdictJson:
        pattern = self._options.pattern if self._options.pattern is not None else task.get("pattern")
        if not isinstance(pattern, str):
            raise ValueError("neither the options nor the task have a pattern")
        compiled = self._compiled(pattern)
        try:
            with answer_limit(self._options.answer_seconds):
                match = self._found(compiled, response.text)
        except AnswerTooSlow:
            return {"reward": 0.0, "extracted_answer": None, TIMED_OUT: True}
        caught = self._caught(match) if match else None
        expected = task.get(self._options.expected) if self._options.expected else None
        if expected is None:
            is_right = match is not None
        else:
            is_right = caught is not None and self._normal(caught) == self._normal(str(expected))
        return {"reward": float(is_right), "extracted_answer": caught}

    def _compiled(self, pattern: str) -> re.Pattern[str]:
        return _compiled(pattern, self._options.flags)

    def _found(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        if self._options.match == "whole":
            return pattern.fullmatch(text.strip())
        if self._options.match == "first":
            return pattern.search(text)
        return deque(pattern.finditer(text), maxlen=1).pop() if pattern.search(text) else None

    def _caught(self, match: re.Match[str]) -> str | None:
        group = self._options.group
        if group is not None:
            return match.group(group)
        if not match.re.groups:
            return match.group()
        return next((caught for caught in match.groups() if caught is not None), None)

    def _normal(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self._options.ignore_case else text


@lru_cache(maxsize=1024)
def _compiled(pattern: str, flags: tuple[Flag, ...]) -> re.Pattern[str]:
    combined = re.RegexFlag(0)
    for flag in flags:
        combined |= re.RegexFlag[flag.upper()]
    return re.compile(pattern, combined)
