"""Rewards an answer that equals the expected one.

Needs `expected_answer` in the task row (or the field that the option `field` names): a text, a number, or a list of accepted texts.
By default the last `\\boxed{...}` is compared if there is one, else the whole text; case, white space and a final full stop do not
matter. It does not understand mathematics: `1/2` is not `0.5` (the `math` verifier does).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rollforge.records import JsonFields, Response, Task
from rollforge.verifiers.building_blocks.verdict_fields import AnswerVerdictJson

needs = ("expected_answer",)

LONGEST_KEPT = 1000
"""Most characters of the extracted answer stored in the row."""


class ExactOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for extraction and comparison."""

    extract: Literal["boxed", "all", "last_line"] = "boxed"
    """What is compared: the last `\\boxed{}` or else everything, always everything, or the last line."""
    ignore_case: bool = True
    """Ignore upper and lower case."""
    ignore_space: bool = True
    """Runs of white space count as one space, and a final full stop is left out."""
    field: str = "expected_answer"
    """Task field that holds the expected answer."""


class Exact:
    """Judges by equality of texts."""

    options_type = ExactOptions
    is_cheap = True

    @staticmethod
    def needs_with(options: JsonFields) -> tuple[str, ...]:
        """The task field with the expected answer."""
        return (str(options.get("field", "expected_answer")),)

    def __init__(self, options: ExactOptions | None = None) -> None:
        self._options = options or ExactOptions()

    def verify(self, task: Task, response: Response) -> AnswerVerdictJson:
        expected = task.get(self._options.field)
        texts = expected if isinstance(expected, list) else [expected]
        accepted = [self._normal(str(text)) for text in texts if text is not None]
        if not any(text.strip() for text in accepted):
            raise ValueError(f"the task has no {self._options.field}")
        extracted = self._extracted(response.text)
        answer = self._normal(extracted)
        return {
            "reward": float(bool(answer) and answer in accepted),
            "extracted_answer": extracted.strip()[:LONGEST_KEPT],
        }

    def _extracted(self, text: str) -> str:
        if self._options.extract == "last_line":
            return text.strip().rpartition("\n")[2]
        boxed = last_boxed(text) if self._options.extract == "boxed" else None
        return text if boxed is None else boxed

    def _normal(self, text: str) -> str:
        if self._options.ignore_space:
            text = " ".join(text.split()).rstrip(".").rstrip()
        return text.casefold() if self._options.ignore_case else text


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` with balanced braces; None if it is not closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    first = start + len("\\boxed{")
    position, depth = first, 1
    while True:
        close = text.find("}", position)
        if close < 0:
            return None
        depth += text.count("{", position, close) - 1
        if depth == 0:
            return text[first:close]
        position = close + 1


_with_defaults = Exact()


def verify(task: Task, response: Response) -> AnswerVerdictJson:
    """Verify with default options; usable as a plain function."""
    return _with_defaults.verify(task, response)
