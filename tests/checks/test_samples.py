"""What checks read of a row's text, whatever the row looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.checks.building_blocks.text_samples import SampledText, Texts, bare
from rollforge.records import JsonObject


class Lines:
    """Rows in memory, and the fields of one task."""

    def __init__(self, *lines: bytes, task: JsonObject | None = None) -> None:
        self._lines, self._task = lines, task

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        return (self._lines[row] for row in rows)

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonObject]]:
        return ((task, self._task) for task in tasks if self._task is not None)


def sample_of(row: Any, task: JsonObject | None = None) -> SampledText:
    line = row if isinstance(row, bytes) else msgspec.json.encode(row)
    return Texts(Lines(line, task=task)).read([0], [0])[0]


ROW: JsonObject = {
    "responses_create_params": {
        "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"text": "What is "}, {"text": "6*7?"}]}],
        "tools": [{"type": "function", "name": "add"}, {"type": "function", "function": {"name": "sub"}}, {"type": "web"}, 3],
        "model": "small-8b",
    },
    "response": {
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "name": "add", "arguments": "{}"},
            {"type": "message", "content": [{"type": "output_text", "text": "It is "}, {"type": "output_text", "text": "42."}]},
        ]
    },
    "expected_answer": 42,
    "reward": None,
}  # fmt: skip


def test_a_row_tells_prompt_answer_calls_tools_model_and_expected_answer() -> None:
    found = sample_of(ROW)
    assert (found.prompt, found.answer, found.expected, found.asked) == (
        "What is 6*7?",
        "It is 42.",
        "42",
        "small-8b",
    )
    assert found.calls == ["add"]
    assert found.tools == ["add", "sub", "web", ""]


def test_the_task_knows_the_expected_answer_better_than_the_row() -> None:
    assert sample_of(ROW, task={"verifier_metadata": {"gold": "forty-two"}}).expected == "forty-two"


def test_fields_are_those_that_are_not_null() -> None:
    lines = Lines(msgspec.json.encode(ROW), b"no JSON")
    known = {"responses_create_params", "response", "expected_answer"}
    assert Texts(lines).fields([0, 1]) == [known, frozenset()]


@pytest.mark.parametrize("odd", [None, True, 7, 1.5, "text", [], [1, "two", None], {"x": 1}])
@pytest.mark.parametrize(
    "place", ["params", "input", "content", "tools", "response", "output", "item", "part"]
)
def test_what_is_odd_in_a_row_hides_nothing_else(place: str, odd: object) -> None:
    row = msgspec.json.decode(msgspec.json.encode(ROW))
    params, response = row["responses_create_params"], row["response"]
    holder, key = {
        "params": (row, "responses_create_params"),
        "input": (params, "input"),
        "content": (params["input"][1], "content"),
        "tools": (params, "tools"),
        "response": (row, "response"),
        "output": (response, "output"),
        "item": (response["output"], 0),
        "part": (response["output"][2]["content"], 0),
    }[place]
    holder[key] = odd
    found = sample_of(row)
    is_prompt, is_answer = place in ("params", "input", "content"), place in ("response", "output", "part")
    assert is_prompt or found.prompt == "What is 6*7?"
    assert is_answer or found.answer == "It is 42."
    assert found.expected == "42"
    assert isinstance(found.prompt, str)
    assert isinstance(found.answer, str)
    assert isinstance(found.calls, list)
    assert found.tools is None or isinstance(found.tools, list)


@pytest.mark.parametrize(
    "line", [b"", b"{", b'{"response": nul}', b"[1]", b'"text"', b'{"response": "\xff"}']
)
def test_a_line_that_is_no_row_says_nothing(line: bytes) -> None:
    found = sample_of(line, task={"answer": "42"})
    assert (found.prompt, found.answer, found.calls, found.tools, found.expected) == ("", "", [], None, None)


@given(st.text() | st.text(alphabet="aB9 _-.,ßİſÉéΣς你“”K\u0301\ud800"))
def test_a_bare_text_is_the_folded_text_without_what_is_no_letter_or_digit(text: str) -> None:
    assert bare(text) == re.sub(r"[\W_]+", "", text.casefold())
