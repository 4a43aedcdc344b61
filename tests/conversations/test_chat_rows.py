"""Rollouts in chat form are as good as those with Responses items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.conversations.messages import ChatMessage, FunctionCall, Inexpressible
from rollforge.conversations.reader import ConversationReader
from rollforge.steps.prepare import prepare
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import call, read_lines, reasoning, result, text, with_output

SCHEMA = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def chat_row(task: int, sample: int, reward: float | None, **fields: object) -> Row:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"question {task}"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": 0.3}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "9 C"},
        {"role": "assistant", "content": f"answer {sample}"},
    ]
    return {"messages": messages, "tools": [SCHEMA], "reward": reward, "_ng_task_index": task} | fields


def test_messages_are_read_with_their_calls_reasoning_and_tools() -> None:
    found = ConversationReader().read(json.dumps(chat_row(0, 0, 1.0)).encode())
    assert [message.role for message in found.prompt] == ["system", "user"]
    assert found.answer == [
        ChatMessage("assistant", "", "hm", [FunctionCall("c0", "look", '{"at": 0.3}')]),
        ChatMessage("tool", "9 C", call_id="c0", name="look"),
        ChatMessage("assistant", "answer 0"),
    ]
    assert json.loads(found.tools or b"") == [SCHEMA]


def test_arguments_given_as_an_object_keep_their_digits() -> None:
    line = (
        b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls":'
        b' [{"function": {"name": "f", "arguments": {"a": 1.10, "b": 12345678901234567890123}}}]}]}'
    )
    (message,) = ConversationReader().read(line).answer
    assert message.calls == [FunctionCall("call_0", "f", '{"a": 1.10, "b": 12345678901234567890123}')]


@pytest.mark.parametrize("completion", ["yes", [{"role": "assistant", "content": "yes"}]])
@pytest.mark.parametrize("prompt", ["sure?", [{"role": "user", "content": "sure?"}]])
def test_prompt_and_completion_may_be_texts_or_messages(prompt: object, completion: object) -> None:
    found = ConversationReader().read(
        json.dumps({"prompt": prompt, "completion": completion, "reward": 1}).encode()
    )
    assert found.messages == [ChatMessage("user", "sure?"), ChatMessage("assistant", "yes")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "narrator", "content": "x"}]}, "message role narrator"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content part image_url"),
        ({"prompt": "x", "completion": "y", "tools": "no schemas"}, "tools that are no list of schemas"),
        ({"reward": 1.0}, "the row does not have the Responses shape"),
    ],
)
def test_what_cannot_be_said_has_a_reason(row: Row, reason: str) -> None:
    with pytest.raises(Inexpressible, match=reason):
        ConversationReader().read(json.dumps(row).encode())


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("sft", "trl"), ("dpo", "openrlhf"), ("kto", "trl"), ("rm", "trl"), ("grpo", "trl"), ("grpo", "verl")],
)
def test_rows_in_chat_form_make_the_same_data_as_items(recipe: str, name: str, tmp_path: Path) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    chats, items = [], []
    for task in range(3):
        for k in range(2):
            chats.append(
                chat_row(task, k, float(k), _ng_rollout_index=k, expected_answer="4", agent_ref={"name": "a"})
            )
            row = make_rollout(task, k, float(k), agent="a", expected_answer="4")
            steps = [reasoning("hm"), call(0, '{"at": 0.3}', "look"), result(0), text(f"answer {k}")]
            for step in steps[1:3]:
                step["call_id"] = "c0"
            items.append(with_output(row, *steps, tools=[tool], instructions="Be brief."))
    made = {}
    for form, rows in (("chat", chats), ("items", items)):
        write_rows(tmp_path / form / "rollouts.jsonl", rows)
        prepared = prepare(recipe, tmp_path / form, to=name, out=tmp_path / f"{form}-data")
        made[form] = prepared
    assert made["chat"].counts == made["items"].counts
    if name == "trl" and recipe != "grpo":
        chat, item = (read_lines(tmp_path / f"{form}-data" / "train.jsonl") for form in ("chat", "items"))
        for row in chat + item:  # the schemas are the bytes they were, so their spaces differ
            row["tools"] = json.loads(row["tools"])
        assert chat == item
    if recipe == "grpo" and name == "trl":
        (row, *_) = read_lines(tmp_path / "chat-data" / "train.jsonl")
        assert [m["role"] for m in row["prompt"]] == ["system", "user"] and row["ground_truth"] == "4"
        assert "answer" not in row["task_fields"].replace("expected_answer", "")


def test_an_unjudged_row_in_chat_form_is_no_reward_0(tmp_path: Path) -> None:
    rows = [chat_row(0, 0, 1.0), chat_row(0, 1, None)]
    made = prepare(
        "sft", write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent, to="trl", out=tmp_path / "data"
    )
    assert made.counts["rollouts"] == {"in": 2, "kept": 1, "unjudged": 1}
