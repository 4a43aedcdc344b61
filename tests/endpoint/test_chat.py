"""Responses and Chat Completions carry the same rollout."""

from __future__ import annotations

import pytest

from rollforge.endpoint.chat import from_chat, to_chat_body, to_messages
from rollforge.errors import Failure
from rollforge.records import Response

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": True,
}


def completion(**more: object) -> dict[str, object]:
    message = {"role": "assistant", "content": "42"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    return {
        "id": "c1",
        "created": 7,
        "model": "m",
        "choices": [choice],
        "usage": usage,
        "system_fingerprint": "fp",
    }


def test_params_become_the_chat_request_that_asks_for_the_same() -> None:
    body = to_chat_body(
        {
            "input": "hello",
            "instructions": "be brief",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "add"},
            "top_logprobs": 2,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "top_p": None,
            "top_k": 20,
            "metadata": {"extra_body": '{"seed": 3}'},
        }
    )
    assert body == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "top_k": 20,
        "seed": 3,
    }


def test_calls_of_one_turn_become_one_message_followed_by_their_results() -> None:
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "function_call_output", "call_id": "2", "output": "y"},
    ]
    user, assistant, first, second = to_messages(items)
    assert user == {"role": "user", "content": "ab"}
    assert assistant["reasoning_content"] == "hm"
    assert [call["id"] for call in assistant["tool_calls"]] == ["1", "2"]
    assert (first["tool_call_id"], second["content"]) == ("1", "y")


def test_a_completion_keeps_everything_training_may_need() -> None:
    raw = from_chat(completion())
    response = Response(raw)
    assert response.text == "42" and response.finish_reason == "stop"
    assert raw["usage"] == {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1},
    }
    assert raw["system_fingerprint"] == "fp" and raw["model"] == "m"


def test_reasoning_refusals_and_tool_calls_are_items_of_their_own() -> None:
    message = {
        "content": None,
        "refusal": "I will not.",
        "reasoning_content": "thinking",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    response = Response(from_chat(completion(message=message, finish_reason="tool_calls")))
    assert [item["type"] for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.refusal == "I will not." and response.reasoning == "thinking"
    assert response.tool_calls[0].parsed() == {"a": 1}


def test_a_truncated_answer_says_so() -> None:
    raw = from_chat(completion(finish_reason="length"))
    assert raw["status"] == "incomplete" and raw["incomplete_details"] == {"reason": "max_output_tokens"}
    assert Response(raw).is_truncated


def test_token_ids_and_logprobs_are_kept_all_three_or_not_at_all() -> None:
    logprobs = {"content": [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -0.25}]}
    raw = from_chat({**completion(logprobs=logprobs, token_ids=[4, 2]), "prompt_token_ids": [1, 2, 3]})
    item = raw["output"][-1]
    assert item["prompt_token_ids"] == [1, 2, 3] and item["generation_token_ids"] == [4, 2]
    assert item["generation_log_probs"] == [-0.5, -0.25]
    torn = from_chat({**completion(logprobs=logprobs, token_ids=[4]), "prompt_token_ids": [1]})
    assert "generation_token_ids" not in torn["output"][-1]


def test_an_empty_answer_is_an_empty_answer() -> None:
    response = Response(from_chat(completion(message={"role": "assistant", "content": ""})))
    assert response.is_empty and response.finish_reason == "stop"


def test_a_completion_without_choices_is_a_passing_fault() -> None:
    with pytest.raises(Failure) as caught:
        from_chat({"choices": []})
    assert caught.value.kind == "transient"
