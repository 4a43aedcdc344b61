"""Parses requests to `Ask` records.

A request that cannot be served raises `Rejection`, which becomes an error in OpenAI's shape.
"""

from __future__ import annotations

from typing import TypedDict, cast

from rollforge.conversations.apis.messages_json import ErrorBodyJson
from rollforge.json_shapes import (
    ChatBodyJson,
    ChatMessageJson,
    ErrorJson,
    ItemJson,
    ParamsJson,
    SchemaJson,
    Shape,
    ToolJson,
)
from rollforge.records import JsonObject, content_text, to_json
from rollforge.simulate.conversation import (
    Ask,
    ConversationItem,
    SimulatedCall,
    SimulatedMessage,
    Tool,
    ToolOutput,
)


class Rejection(Exception):
    """An error reply, in OpenAI's format or (`is_detail`) in FastAPI's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | int | None = None,
        param: str | None = None,
        is_detail: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        error: ErrorJson = {"message": message, "type": kind, "param": param, "code": code}
        self.body: ErrorBodyJson = {"detail": message} if is_detail else {"error": error}


def read_responses(body: ParamsJson) -> Ask:
    """Parse a Responses API request."""
    if body.get("previous_response_id"):
        raise Rejection(
            400,
            "this server keeps no responses; send the whole conversation as input",
            param="previous_response_id",
        )
    input_value = body.get("input")
    if isinstance(input_value, str):
        items: list[ConversationItem] = [SimulatedMessage("user", input_value)]
    elif isinstance(input_value, list) and input_value:
        items = [item for entry in input_value for item in _responses_item(entry)]
    else:
        raise Rejection(400, "input must be a text or a list of items", param="input")
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        items.insert(0, SimulatedMessage("system", instructions))
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


def read_chat(body: ChatBodyJson) -> Ask:
    """Parse a Chat Completions request."""
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


class _SharedFields(TypedDict):
    """Fields of `Ask` that both APIs have in the same form."""

    model: str
    tools: tuple[Tool, ...]
    tool_choice: str
    parallel_calls: bool
    temperature: float
    seed: int | None
    sample: str | None
    wants_token_ids: bool
    body: ParamsJson


def _shared(body: ParamsJson | ChatBodyJson) -> _SharedFields:
    """Parse the fields that both APIs have in the same form."""
    if not isinstance(body.get("model"), str):
        raise Rejection(400, "you must provide a model parameter", param="model")
    return {
        "model": body["model"],
        "tools": tuple(tool for entry in body.get("tools") or [] for tool in _tools(entry)),
        "tool_choice": _tool_choice(body.get("tool_choice")),
        "parallel_calls": body.get("parallel_tool_calls") is not False,
        "temperature": _number(body, "temperature", 1.0),
        "seed": body.get("seed"),
        "sample": _mapping(body.get("metadata")).get("rollforge_sample"),
        "wants_token_ids": bool(body.get("return_token_ids")),
        "body": cast("ParamsJson", body),
    }


def _responses_item(entry: ItemJson) -> list[ConversationItem]:
    item = _entry(entry, "input")
    match item.get("type", "message"):
        case "message":
            return [SimulatedMessage(str(item.get("role", "user")), content_text(item.get("content")))]
        case "function_call":
            return [
                SimulatedCall(str(item.get("name")), str(item.get("arguments")), str(item.get("call_id")))
            ]
        case "function_call_output":
            return [ToolOutput(str(item.get("call_id")), _text(item.get("output")))]
        case "reasoning":
            return []
        case other:
            raise Rejection(
                400, f"the simulated model cannot read input items of type {other!r}", param="input"
            )


def _chat_items(entry: ChatMessageJson) -> list[ConversationItem]:
    message = _entry(entry, "messages")
    role = message.get("role")
    if role == "tool":
        return [ToolOutput(str(message.get("tool_call_id")), _text(message.get("content")))]
    if role not in ("system", "developer", "user", "assistant"):
        raise Rejection(400, f"unknown role {role!r}", param="messages")
    calls = [(_mapping(call.get("function")), call) for call in message.get("tool_calls") or []]
    items: list[ConversationItem] = [
        SimulatedCall(str(function.get("name")), str(function.get("arguments")), str(call.get("id")))
        for function, call in calls
    ]
    text = content_text(message.get("content"))
    return [SimulatedMessage(role, text), *items] if text or not items else items


def _tools(entry: ToolJson) -> list[Tool]:
    """Functions among the tool entries. Provider-run tools have no parameters, so this model cannot use them."""
    tool = _entry(entry, "tools")
    function = tool["function"] if isinstance(tool.get("function"), dict) else tool
    if tool.get("type", "function") != "function":
        return []
    name = function.get("name")
    if not isinstance(name, str):
        raise Rejection(400, "a tool has no name", param="tools")
    return [Tool(name, _schema(function.get("parameters")), to_json(tool).decode())]


def _tool_choice(choice: object) -> str:
    if isinstance(choice, dict):
        return str(choice.get("name") or _mapping(choice.get("function")).get("name") or "auto")
    return choice if isinstance(choice, str) else "auto"


def _entry(value: Shape, param: str) -> Shape:
    if not isinstance(value, dict):
        raise Rejection(400, f"{param} must hold objects, not {type(value).__name__}", param=param)
    return value


def _schema(value: SchemaJson | None) -> SchemaJson:
    return value if isinstance(value, dict) else {}


def _mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else content_text(value)


def _number(body: ParamsJson | ChatBodyJson, key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejection(400, f"{key} must be a number", param=key)
    return value


def _limit(body: ParamsJson | ChatBodyJson, key: str) -> int | None:
    if body.get(key) is None:
        return None
    value = _number(body, key, 0)
    if value < 1:
        raise Rejection(400, f"{key} must be at least 1", param=key)
    return int(value)
