"""Rollouts laid out for reading, however odd their rows are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.conversations.turns import Turn, turns_of
from rollforge.index import open_index
from rollforge.steps.show import ShowOptions, show_rollouts
from tests.builders import Row, make_rollout, write_rows

QUESTION = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("row", "last"),
    [
        (
            {"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": None}]}]},
            Turn("tool call", '{\n  "id": "1",\n  "function": null\n}'),
        ),
        ({"messages": [QUESTION, {"role": "assistant", "content": 5}]}, Turn("assistant", "5")),
        ({"messages": [QUESTION, {"role": "assistant", "content": True}]}, Turn("assistant", "true")),
        ({"messages": [QUESTION, {"role": "assistant", "content": {"a": 1}}]}, Turn("assistant", '{\n  "a": 1\n}')),
        ({"messages": [QUESTION, {"role": "assistant", "content": ["x", {"text": "y"}]}]}, Turn("assistant", "y\nx")),
        ({"messages": [QUESTION, {"role": "assistant", "content": "x", "tool_calls": "abc"}]}, Turn("tool call", "abc")),
        ({"messages": [QUESTION, {"role": "assistant", "tool_calls": {"a": 1}}]}, Turn("tool call", '{\n  "a": 1\n}')),
        ({"messages": [QUESTION, 7]}, Turn("other", "7", "not a message")),
        ({"prompt": 5, "completion": ["x"]}, Turn("assistant", "x")),
        ({"responses_create_params": {"input": "q"}, "response": {"output": "x"}}, Turn("assistant", "x")),
        ({"responses_create_params": {"input": "q"}, "response": {"output": [["x"]]}}, Turn("other", '[\n  "x"\n]', "not an item")),
    ],
)  # fmt: skip
def test_an_odd_row_is_shown_as_well_as_it_can_be(tmp_path: Path, row: dict[str, Any], last: Turn) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [row | {"reward": 1.0}])
    [shown] = show_rollouts(open_index(path), ShowOptions())
    assert shown.turns[-1] == last


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.sampled_from(["", "x", "message", "{}"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type", "text", "refusal", "output"]),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@given(
    key=st.sampled_from(["messages", "prompt", "completion", "response", "responses_create_params"]),
    value=VALUES,
)
def test_no_row_is_too_odd_to_be_laid_out(key: str, value: Any) -> None:
    for row in (
        {key: value},
        {key: [value]},
        {key: {"input": value, "output": value, "instructions": value}},
    ):
        assert all(isinstance(turn.text, str) for turn in turns_of(row))


def test_a_sample_is_the_same_whatever_order_the_lines_are_in(tmp_path: Path) -> None:
    rows = [make_rollout(task, rollout) for task in range(10) for rollout in range(3)]

    def drawn(name: str, lines: list[Row], seed: int) -> list[tuple[int, int]]:
        with open_index(write_rows(tmp_path / name, lines)) as index:
            shown = show_rollouts(index, ShowOptions(sample=4, seed=seed))
        return [(one.task, one.rollout) for one in shown]

    assert drawn("one.jsonl", rows, 7) == drawn("other.jsonl", rows[::-1], 7) != drawn("one.jsonl", rows, 8)


@pytest.mark.parametrize(
    "options", [{"pick": "best"}, {"pick": "worst"}, {"pick": "suspicious"}, {"sort": "reward desc"}]
)
def test_ties_are_broken_neither_by_the_order_of_lines_nor_by_length(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rows = [
        make_rollout(task, rollout, float(rollout > 0), text="" if rollout == 1 else "word " * (30 - task))
        for task in range(20)
        for rollout in range(3)
    ]

    def listed(name: str, lines: list[Row]) -> list[tuple[int, int, int]]:
        with open_index(write_rows(tmp_path / name, lines)) as index:
            shown = show_rollouts(index, ShowOptions(**options))
        return [(one.task, one.rollout, one.facts.get("answer_chars", 0)) for one in shown]

    assert listed("one.jsonl", rows) == listed("other.jsonl", rows[::-1])
    if options == {"pick": "best"}:
        assert {chars for _, _, chars in listed("one.jsonl", rows)} != {0}, "the shortest are not the best"


def test_images_and_files_of_a_message_are_shown_but_not_their_data() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "https://example.org/cat.png"},
        {"type": "input_file", "file_data": "A" * 5000},
    ]
    [turn] = turns_of({"responses_create_params": {"input": [{"role": "user", "content": parts}]}})
    text, image, file = turn.text.split("\n")
    assert text == "look" and image == '[input_image] {"image_url":"https://example.org/cat.png"}'
    assert file.startswith('[input_file] {"file_data":"AAA') and len(file) < 200
