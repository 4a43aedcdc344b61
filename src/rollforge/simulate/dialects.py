"""This module speaks the two APIs: it reads their requests into an `Ask` and writes a `Turn` in their shapes.

A request it cannot serve raises `Rejection`, which is an answer in OpenAI's error shape, never a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rollforge.records import JsonObject, content_text
from rollforge.simulate import tokens
from rollforge.simulate.chance import Chance
from rollforge.simulate.conversation import Ask, Call, Item, Message, Tool, ToolOutput, Turn

FINGERPRINT = "rollforge-simulated"


class Rejection(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: JsonObject = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Answered(NamedTuple):
    """A turn with what identifies it."""

    turn: Turn
    key: int
    """Names the answer: equal for equal (seed, prompt, sample)."""


# Reading


def read_responses(body: JsonObject) -> Ask:
    """The ask in a Responses API request."""
    _refuse_streaming(body)
    if body.get("previous_response_id"):
        raise Rejection(
            400,
            "this server keeps no responses; send the whole conversation as input",
            param="previous_response_id",
        )
    given = body.get("input")
    if isinstance(given, str):
        items: list[Item] = [Message("user", given)]
    elif isinstance(given, list) and given:
        items = [item for entry in given for item in _responses_item(entry)]
    else:
        raise Rejection(400, "input must be a text or a list of items", param="input")
    if isinstance(body.get("instructions"), str):
        items.insert(0, Message("system", body["instructions"]))
    include = body.get("include") or []
    top = _number(body, "top_logprobs", 0)
    return Ask(
        items=tuple(items),
        max_tokens=_limit(body, "max_output_tokens"),
        wants_reasoning=bool(_mapping(body.get("reasoning")).get("effort") not in (None, "none")),
        wants_logprobs="message.output_text.logprobs" in include or top > 0,
        top_logprobs=int(top),
        **_shared(body),
    )


def read_chat(body: JsonObject) -> Ask:
    """The ask in a Chat Completions request."""
    _refuse_streaming(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Rejection(400, "messages must be a list with at least one message", param="messages")
    choices = _number(body, "n", 1)
    if choices < 1 or choices != int(choices):
        raise Rejection(400, "n must be a whole number from 1", param="n")
    return Ask(
        items=tuple(item for message in messages for item in _chat_items(message)),
        max_tokens=_limit(body, "max_completion_tokens") or _limit(body, "max_tokens"),
        choices=int(choices),
        wants_reasoning=body.get("reasoning_effort") not in (None, "none"),
        wants_logprobs=bool(body.get("logprobs")),
        top_logprobs=int(_number(body, "top_logprobs", 0)),
        **_shared(body),
    )


def _shared(body: JsonObject) -> JsonObject:
    """What both APIs write alike."""
    if not isinstance(body.get("model"), str):
        raise Rejection(400, "you must provide a model parameter", param="model")
    return {
        "model": body["model"],
        "tools": tuple(map(_tool, body.get("tools") or [])),
        "tool_choice": _tool_choice(body.get("tool_choice")),
        "parallel_calls": body.get("parallel_tool_calls") is not False,
        "temperature": _number(body, "temperature", 1.0),
        "seed": body.get("seed"),
        "sample": _mapping(body.get("metadata")).get("rollforge_sample"),
        "wants_token_ids": bool(body.get("return_token_ids")),
        "body": body,
    }


def _refuse_streaming(body: JsonObject) -> None:
    if body.get("stream"):
        raise Rejection(
            400, "the simulated model does not stream; leave stream out or set it to false", param="stream"
        )


def _responses_item(entry: object) -> list[Item]:
    item = _entry(entry, "input")
    match item.get("type", "message"):
        case "message":
            return [Message(str(item.get("role", "user")), content_text(item.get("content")))]
        case "function_call":
            return [Call(str(item.get("name")), str(item.get("arguments")), str(item.get("call_id")))]
        case "function_call_output":
            return [ToolOutput(str(item.get("call_id")), _text(item.get("output")))]
        case "reasoning":
            return []
        case other:
            raise Rejection(
                400, f"the simulated model cannot read input items of type {other!r}", param="input"
            )


def _chat_items(entry: object) -> list[Item]:
    message = _entry(entry, "messages")
    role = message.get("role")
    if role == "tool":
        return [ToolOutput(str(message.get("tool_call_id")), _text(message.get("content")))]
    if role not in ("system", "developer", "user", "assistant"):
        raise Rejection(400, f"unknown role {role!r}", param="messages")
    calls = [(_mapping(call.get("function")), call) for call in message.get("tool_calls") or []]
    items: list[Item] = [
        Call(str(function.get("name")), str(function.get("arguments")), str(call.get("id")))
        for function, call in calls
    ]
    text = content_text(message.get("content"))
    return [Message(role, text), *items] if text or not items else items


def _tool(entry: object) -> Tool:
    tool = _entry(entry, "tools")
    function = tool["function"] if isinstance(tool.get("function"), dict) else tool
    if not isinstance(function.get("name"), str):
        raise Rejection(400, "a tool has no name", param="tools")
    return Tool(
        function["name"], str(function.get("description") or ""), _mapping(function.get("parameters"))
    )


def _tool_choice(choice: object) -> str:
    if isinstance(choice, dict):
        return str(choice.get("name") or _mapping(choice.get("function")).get("name") or "auto")
    return choice if isinstance(choice, str) else "auto"


def _entry(value: object, param: str) -> JsonObject:
    if not isinstance(value, dict):
        raise Rejection(400, f"{param} must hold objects, not {type(value).__name__}", param=param)
    return value


def _mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else content_text(value)


def _number(body: JsonObject, key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejection(400, f"{key} must be a number", param=key)
    return value


def _limit(body: JsonObject, key: str) -> int | None:
    if body.get(key) is None:
        return None
    value = _number(body, key, 0)
    if value < 1:
        raise Rejection(400, f"{key} must be at least 1", param=key)
    return int(value)


# Writing


def write_responses(ask: Ask, model: str, answers: Sequence[Answered]) -> JsonObject:
    """A `response` object; the Responses API has one answer per request."""
    turn, key = answers[0]
    is_cut = turn.finish in ("length", "content_filter")
    status = "incomplete" if is_cut else "completed"
    reason = "max_output_tokens" if turn.finish == "length" else turn.finish
    body = ask.body
    return {
        "id": f"resp_{key:016x}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if is_cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": model,
        "output": _output_items(ask, turn, key, status),
        "parallel_tool_calls": ask.parallel_calls,
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": False,
        "temperature": ask.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": _responses_usage(ask, turn),
        "user": body.get("user"),
        "metadata": body.get("metadata") or {},
        "system_fingerprint": FINGERPRINT,
    }


def write_chat(ask: Ask, model: str, answers: Sequence[Answered]) -> JsonObject:
    """A `chat.completion` object with one choice per answer."""
    prompt, generated = tokens.count_prompt(ask), [tokens.count_turn(turn) for turn, _ in answers]
    completion: JsonObject = {
        "id": f"chatcmpl-{answers[0].key:016x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "choices": [_choice(ask, number, answered) for number, answered in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sum(generated),
            "total_tokens": prompt + sum(generated),
            "prompt_tokens_details": {"cached_tokens": _cached(ask, prompt)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(tokens.count(turn.reasoning) for turn, _ in answers)
            },
        },
    }
    if ask.wants_token_ids:
        completion["prompt_token_ids"] = tokens.prompt_ids(ask)
    return completion


def _output_items(ask: Ask, turn: Turn, key: int, status: str) -> list[JsonObject]:
    items: list[JsonObject] = []
    if turn.reasoning:
        summary = [{"type": "summary_text", "text": turn.reasoning}]
        items.append(
            {"type": "reasoning", "id": f"rs_{key:016x}", "summary": summary, "encrypted_content": None}
        )
    if turn.refusal is not None:
        items.append(_message(key, status, {"type": "refusal", "refusal": turn.refusal}))
    elif turn.text or not turn.calls:
        part: JsonObject = {"type": "output_text", "text": turn.text, "annotations": []}
        part["logprobs"] = _logprobs(ask, turn, key) if ask.wants_logprobs else []
        items.append(_message(key, status, part))
    for number, call in enumerate(turn.calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{key:016x}_{number}",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": status,
            }
        )
    if ask.wants_token_ids:
        items[-1] |= _token_fields(ask, turn, key)
    return items


def _message(key: int, status: str, part: JsonObject) -> JsonObject:
    return {
        "type": "message",
        "id": f"msg_{key:016x}",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


def _token_fields(ask: Ask, turn: Turn, key: int) -> JsonObject:
    """The three fields that NeMo Gym keeps on the last item of a model call."""
    ids = tokens.turn_ids(turn)
    chance = Chance("token logprobs", key)
    return {
        "prompt_token_ids": tokens.prompt_ids(ask),
        "generation_token_ids": ids,
        "generation_log_probs": [round(-3.0 * chance.uniform() ** 4, 6) for _ in ids],
    }


def _choice(ask: Ask, number: int, answered: Answered) -> JsonObject:
    turn, key = answered
    message: JsonObject = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
    message["refusal"] = turn.refusal
    if turn.refusal is not None:
        message["content"] = None
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ]
    choice: JsonObject = {"index": number, "message": message, "finish_reason": turn.finish, "logprobs": None}
    if ask.wants_logprobs:
        choice["logprobs"] = {"content": _logprobs(ask, turn, key), "refusal": None}
    if ask.wants_token_ids:
        choice["token_ids"] = tokens.turn_ids(turn)
    return choice


def _logprobs(ask: Ask, turn: Turn, key: int) -> list[JsonObject]:
    return tokens.logprobs(turn.text, ask.top_logprobs, Chance("logprobs", key))


def _responses_usage(ask: Ask, turn: Turn) -> JsonObject:
    prompt, generated = tokens.count_prompt(ask), tokens.count_turn(turn)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _cached(ask, prompt)},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": tokens.count(turn.reasoning)},
        "total_tokens": prompt + generated,
    }


def _cached(ask: Ask, prompt_tokens: int) -> int:
    """Tokens of the prompt that an earlier turn of the same rollout had already sent, in blocks of 16."""
    return prompt_tokens // 2 // 16 * 16 if any(isinstance(item, ToolOutput) for item in ask.items) else 0


class Dialect(NamedTuple):
    """One API: how its requests are read and its answers written."""

    read: Callable[[JsonObject], Ask]
    write: Callable[[Ask, str, Sequence[Answered]], Any]


DIALECTS = {
    "/v1/responses": Dialect(read_responses, write_responses),
    "/v1/chat/completions": Dialect(read_chat, write_chat),
}
