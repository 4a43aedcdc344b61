"""Hypothesis strategies for hostile rollouts: any text, broken order, parallel calls, nested arguments, missing fields."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.builders import Row, make_rollout
from tests.prepare_runs import TOOL, call, reasoning, result, text, with_output

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "</tools>")

texts = st.text(max_size=30).filter(lambda value: not any(mark in value for mark in MARKS))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3).map(json.dumps)


@st.composite
def outputs(draw: st.DrawFn) -> list[Row]:
    """Items of a rollout in any order a careless agent may produce."""
    items: list[Row] = []
    open_calls: list[int] = []
    for number in range(draw(st.integers(0, 7))):
        kind = draw(
            st.sampled_from(["text", "text", "reasoning", "call", "call", "result", "user", "developer"])
        )
        if kind == "text":
            items.append(text(draw(texts)))
        elif kind == "reasoning":
            items.append(reasoning(draw(texts)))
        elif kind == "call":
            items.append(call(number, draw(arguments)))
            open_calls.append(number)
        elif kind == "result" and open_calls:
            items.append(result(open_calls.pop(draw(st.integers(0, len(open_calls) - 1))), draw(texts)))
        elif kind in ("user", "developer"):
            items.append({"role": kind, "content": draw(texts)})
    return items


@st.composite
def rollouts(draw: st.DrawFn) -> Row:
    """A rollout row."""
    messages: list[Row] = []
    for role in draw(st.lists(st.sampled_from(["system", "developer"]), max_size=2)):
        messages.append({"role": role, "content": draw(texts)})
    for role in draw(st.lists(st.sampled_from(["user", "user", "assistant"]), max_size=3)):
        parts = [{"type": "input_text" if role == "user" else "output_text", "text": draw(texts)}]
        messages.append({"role": role, "content": draw(st.sampled_from([parts, parts[0]["text"]]))})
    params: dict[str, Any] = {"input": messages}
    if draw(st.booleans()):
        params["tools"] = [TOOL]
    if draw(st.booleans()):
        params["instructions"] = draw(texts)
    return with_output(make_rollout(), *draw(outputs()), **params)
