"""Responses items become chat messages: what each item turns into, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollforge.conversations.messages import ChatMessage, Conversation, FunctionCall, Inexpressible
from rollforge.conversations.reader import ConversationReader
from tests.builders import Row, make_rollout
from tests.prepare_runs import TOOL, call, reasoning, result, text, with_output


def read(row: Row, **options: Any) -> Conversation:
    return ConversationReader(**options).read(json.dumps(row).encode())


def answer(*items: Row) -> list[ChatMessage]:
    return read(with_output(make_rollout(), *items)).answer


def test_neighbouring_items_of_the_model_are_one_message_until_a_tool_answers() -> None:
    assert answer(
        reasoning("t"), text("a"), call(1, '{"x": 1}'), call(2), result(1, "r1"), result(2, "r2"), text("b")
    ) == [
        ChatMessage(
            "assistant",
            "a",
            "t",
            [FunctionCall("call_1", "get_weather", '{"x": 1}'), FunctionCall("call_2", "get_weather", "{}")],
        ),
        ChatMessage("tool", "r1", call_id="call_1", name="get_weather"),
        ChatMessage("tool", "r2", call_id="call_2", name="get_weather"),
        ChatMessage("assistant", "b"),
    ]


def test_instructions_are_the_first_system_message() -> None:
    row = make_rollout(prompt="hi")
    row["responses_create_params"]["instructions"] = "be kind"
    assert read(row).prompt == [ChatMessage("system", "be kind"), ChatMessage("user", "hi")]


def test_an_input_text_is_one_user_message() -> None:
    row = make_rollout()
    row["responses_create_params"]["input"] = "just text"
    assert read(row).prompt == [ChatMessage("user", "just text")]


def test_tool_schemas_lose_strict_and_keep_every_digit() -> None:
    row = with_output(make_rollout(), text("a"), tools=[TOOL])
    tools = json.loads(read(row).tools or b"")
    assert tools == [
        {
            "type": "function",
            "function": {key: TOOL[key] for key in ("name", "description", "parameters")},
        }
    ]
    assert b"[0.3, 0.6]" in (read(row).tools or b"")


def test_list_content_is_joined_and_marked() -> None:
    row = make_rollout()
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    row["responses_create_params"]["input"] = [{"role": "user", "content": parts}]
    conversation = read(row)
    assert conversation.prompt == [ChatMessage("user", "ab")]
    assert "list content joined" in conversation.marks


def test_a_refusal_is_kept_as_text_and_marked() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    conversation = read(with_output(make_rollout(), item))
    assert conversation.answer == [ChatMessage("assistant", "No.")]
    assert "refusal kept as text" in conversation.marks


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"type": "web_search_call", "id": "w"}, "item type web_search_call"),
        ({"type": "message", "role": "critic", "content": "x"}, "message role critic"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "function call without a name"),
        (result(1, [{"type": "input_image", "image_url": "u"}]), "tool result part input_image"),
        ([text("nested")], "response.output is not a list of Responses items"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(item: Any, reason: str) -> None:
    with pytest.raises(Inexpressible, match=reason):
        answer(item)


def test_images_are_refused_by_name_or_passed_on_as_asked() -> None:
    row = make_rollout()
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "http://x/y.png"}]
    row["responses_create_params"]["input"] = [{"role": "user", "content": parts}]
    with pytest.raises(Inexpressible, match="content part input_image"):
        read(row)
    assert read(row, images="pass").prompt == [ChatMessage("user", "look", images=["http://x/y.png"])]


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_read() -> None:
    line = json.dumps(with_output(make_rollout(), text("MARK"))).encode()
    assert ConversationReader().read(line.replace(b"MARK", rb"\ud83d\ude00")).answer == [
        ChatMessage("assistant", "😀")
    ]
    with pytest.raises(Inexpressible, match="not valid JSON"):
        ConversationReader().read(line.replace(b"MARK", rb"\ud83d"))


def test_the_reader_refuses_bytes_that_are_not_utf8() -> None:
    line = json.dumps(with_output(make_rollout(), text("MARK"))).encode().replace(b"MARK", b"\xff")
    with pytest.raises(Inexpressible, match="UTF-8"):
        ConversationReader().read(line)


def test_token_ids_are_kept_as_they_were() -> None:
    item = text("a") | {
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3, 4],
        "generation_log_probs": [-0.1, -2.5e-7],
    }
    tokens = read(with_output(make_rollout(), item)).tokens
    assert [bytes(tokens[0].generation_token_ids), bytes(tokens[0].generation_log_probs)] == [
        b"[3, 4]",
        b"[-0.1, -2.5e-07]",
    ]


def test_rollouts_of_one_task_share_the_prompt() -> None:
    reader = ConversationReader()
    first, second = (reader.read(json.dumps(make_rollout(0, sample)).encode()) for sample in range(2))
    assert first.prompt is second.prompt
