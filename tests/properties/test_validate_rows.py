"""Validate: whatever stands in a row, it becomes a finding and never an exception."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollforge.steps.validate import ValidateOptions, validate_files
from tests.builders import Row, make_rollout
from tests.prepare_runs import TOOL, call, reasoning, result

SEARCH = settings(max_examples=100, derandomize=True, deadline=None)

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"type": "string", "enum": ["x"]}], "items": {"type": "array"}}},
    "required": ["a"],
}
_PARAMS = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}, {"type": "input_image", "image_url": "u"}]},
        reasoning("hm"), call(0), result(0), {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
    ],
    "tools": [TOOL, {**TOOL, "name": "g", "parameters": _SCHEMA}], "tool_choice": {"type": "function", "name": "g"},
    "temperature": 1, "metadata": {"a": "b"}, "instructions": "i", "reasoning": {}, "include": [], "text": {},
}  # fmt: skip
_SAID = {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
_CHAT = [{"role": "user", "content": "q"}, _SAID]
_TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
_SIDES = [{"rank": n, "completion": [{"role": "assistant", "content": str(n)}]} for n in range(2)]
GOOD: list[Row] = [
    {"responses_create_params": _PARAMS, "expected_answer": "1"},
    make_rollout(0, 0) | {"responses_create_params": _PARAMS},
    make_rollout(0, 0),
    {"messages": _CHAT, "tools": "[]"},
    {"conversations": _TURNS, "system": "", "tools": ""},
    {"conversations": _TURNS[:1], "chosen": _TURNS[1], "rejected": {"from": "gpt", "value": "b"}},
    {"prompt": _CHAT[:1], "chosen": _CHAT[1:], "rejected": _SIDES[0]["completion"]},
    {"prompt": "q", "completion": "a", "label": True},
    {"context": _CHAT[:1], "completions": _SIDES},
    {"input": _CHAT[:1], "label": "1", "datasource": "d"},
    {"rollout": make_rollout(0, 0)},
]

_WORDS = st.sampled_from([
    "", "x", "message", "function", "function_call", "function_call_output", "reasoning", "mcp_list_tools", "user", "tool", "object",
    "array", "{bad", "[]", "null", "input_image", "\ud800", "auto", "human", "gpt", "observation",
])  # fmt: skip
_NUMBERS = st.sampled_from(
    [0, 1, -1, 2**70, 10**400, 10**4200, 1e308, -1e308, 0.5, float("nan"), float("inf")]
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=4,
)


def _places(value: object) -> list[tuple[Any, Any]]:
    """Every (container, key) below."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        found += _places(inner)
    return found


@st.composite
def _lines(draw: st.DrawFn) -> bytes:
    """A good row with a few wrong values anywhere, or anything at all."""
    row: Any = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        places = _places(row)
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        if draw(st.booleans()) or isinstance(holder, list):
            holder[key] = draw(_VALUES)
        else:
            del holder[key]
    if draw(st.integers(0, 9)) == 0:
        row = draw(_VALUES)
    text = json.dumps(row).replace(
        '"x"', draw(st.sampled_from(['"x"', "1e999", "\\ud800", '{"a": 1, "a": 2}']))
    )
    return text.encode()


@SEARCH
@given(st.lists(st.lists(_lines(), max_size=4), min_size=1, max_size=3))
def test_no_row_stops_validate_and_the_lines_it_keeps_are_good(files: list[list[bytes]]) -> None:
    # A file that begins with an array is another container: its elements are the rows.
    assume(not any(lines and lines[0].startswith(b"[") for lines in files))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jsonl" for number in range(len(files))]
        for path, lines in zip(paths, files, strict=True):
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        needs = ("expected_answer|metadata.answer", "verifier_metadata.tests")
        options = ValidateOptions(needs=needs[: len(files) - 1], fix=True, out=folder)
        report = validate_files(paths, options)
        assert msgspec.json.encode(report)
        for lines, one in zip(files, report.files, strict=True):
            kept = Path(one.fixed or "").read_bytes().splitlines()
            rejected = Path(one.rejects or "").read_bytes().splitlines()
            assert len(kept) + len(rejected) == len(lines)
            reasons = [reason for line in rejected for reason in json.loads(line)["reasons"]]
            assert not one.errors or rejected or not lines
            assert one.errors or all(reason.startswith("the same row as") for reason in reasons)
        copies = [one.fixed or "" for one in report.files if Path(one.fixed or "").stat().st_size]
        assert validate_files(copies, ValidateOptions(needs=options.needs)).ok
