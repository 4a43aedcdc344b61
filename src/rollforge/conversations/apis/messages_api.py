"""Server side of Anthropic's Messages: requests become Responses-shaped params, Responses objects become messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rollforge.conversations.apis.chat_api import reasoning_parts, refusal_of
from rollforge.conversations.apis.messages_json import (
    BlockJson,
    ErrorBodyJson,
    ImageSourceJson,
    MessageJson,
    MessagesBodyJson,
    MessagesChoiceJson,
    MessagesToolJson,
    MessagesUsageJson,
    TurnJson,
)
from rollforge.json_shapes import ItemJson, ParamsJson, PartJson, ResponseJson, ToolJson, UsageJson
from rollforge.records import content_text, from_json, to_json
from rollforge.store.reading import UNREADABLE

_SAME = ("model", "temperature", "top_p", "top_k")

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""HTTP status → Anthropic's name for the error; other statuses are an `api_error`."""


def params_from_messages(body: MessagesBodyJson) -> ParamsJson:
    """Equivalent Responses params; raises `ValueError` for requests without an equivalent."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list with at least one message")
    fields: dict[str, object] = {key: value for key, value in body.items() if value is not None}
    params = cast("ParamsJson", {key: fields[key] for key in _SAME if key in fields})
    system = body.get("system")
    if system:
        params["instructions"] = system if isinstance(system, str) else content_text(system)
    params["input"] = [item for message in messages for item in _items(message)]
    if body.get("max_tokens") is not None:
        params["max_output_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        params["stop"] = body["stop_sequences"]
    tools = [_tool(tool) for tool in body.get("tools") or [] if _is_function(tool)]
    if tools:
        params["tools"] = tools
        _add_choice(params, body.get("tool_choice"))
    return params


def _is_function(tool: object) -> bool:
    """Whether the caller runs this tool. Tools that run on Anthropic's servers have a type of their own and no schema."""
    return isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict)


def _tool(tool: MessagesToolJson) -> ToolJson:
    function: ToolJson = {"type": "function", "name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return function


def _add_choice(params: ParamsJson, choice: MessagesChoiceJson | None) -> None:
    if not isinstance(choice, dict):
        return
    match choice.get("type"):
        case "any":
            params["tool_choice"] = "required"
        case "none":
            params["tool_choice"] = "none"
        case "tool":
            params["tool_choice"] = {"type": "function", "name": choice.get("name")}
    if choice.get("disable_parallel_tool_use"):
        params["parallel_tool_calls"] = False


def _items(message: TurnJson) -> list[ItemJson]:
    """The items of one message. Tool results come before the text beside them, in the order of their creation."""
    if not isinstance(message, dict):
        raise ValueError(f"messages must hold objects, not {type(message).__name__}")
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        raise ValueError(f"unknown role {role!r}")
    content = message.get("content")
    if not isinstance(content, list):
        return [{"type": "message", "role": role, "content": content or ""}]
    before: list[ItemJson] = []
    calls: list[ItemJson] = []
    parts: list[PartJson] = []
    kind = "output_text" if role == "assistant" else "input_text"
    for block in content:
        if not isinstance(block, dict):
            raise ValueError("content must hold objects")
        match block.get("type"):
            case "text":
                parts.append({"type": kind, "text": block.get("text") or ""})
            case "thinking":
                thought: list[PartJson] = [{"type": "summary_text", "text": block.get("thinking") or ""}]
                before.append({"type": "reasoning", "summary": thought})
            case "tool_use":
                calls.append(
                    {
                        "type": "function_call",
                        "call_id": str(block.get("id") or ""),
                        "name": str(block.get("name") or ""),
                        "arguments": to_json(block.get("input") or {}).decode(),
                    }
                )
            case "tool_result":
                before.append(
                    {
                        "type": "function_call_output",
                        "call_id": str(block.get("tool_use_id") or ""),
                        "output": _result_text(block.get("content")),
                    }
                )
            case "image":
                parts.append({"type": "input_image", "image_url": _image_url(block.get("source"))})
            case "redacted_thinking":
                pass  # only Anthropic can decode it
            case other:
                raise ValueError(f"a content block of type {other!r} cannot be recorded")
    words: list[ItemJson] = []
    if not all(part["type"] == kind for part in parts):
        words = [{"type": "message", "role": role, "content": parts}]
    elif parts:
        words = [{"type": "message", "role": role, "content": "".join(part["text"] or "" for part in parts)}]
    return [*before, *words, *calls]


def _result_text(content: Any) -> str:
    return content if isinstance(content, str) else content_text(content)


def _image_url(source: ImageSourceJson | None) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return source.get("url")


def message_from_response(response: ResponseJson, model: str) -> MessageJson:
    """A Responses object as a message, without token ids and logprobs."""
    blocks: list[BlockJson] = []
    is_refused = False
    for item in response.get("output") or []:
        match item.get("type"):
            case "reasoning":
                text = "".join(part.get("text") or "" for part in reasoning_parts(item))
                blocks.append({"type": "thinking", "thinking": text, "signature": ""})
            case "message":
                refused = refusal_of(item)
                is_refused |= refused is not None
                text = content_text(item.get("content")) or refused or ""
                if text:
                    blocks.append({"type": "text", "text": text})
            case "function_call":
                blocks.append(
                    {
                        "type": "tool_use",
                        "id": item.get("call_id"),
                        "name": item.get("name"),
                        "input": input_of(item.get("arguments")),
                    }
                )
    return {
        "id": str(response.get("id") or "msg_0"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": _stop_reason(response, blocks, is_refused),
        "stop_sequence": None,
        "usage": messages_usage(response.get("usage")),
    }


def input_of(arguments: str | None) -> Mapping[str, object]:
    """The arguments as the object that the API requires; text that is no JSON object is passed on unchanged."""
    try:
        value = from_json(arguments) if arguments else {}
    except UNREADABLE:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _stop_reason(response: ResponseJson, blocks: list[BlockJson], is_refused: bool) -> str:
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason == "max_output_tokens":
        return "max_tokens"
    if reason or is_refused:
        return "refusal"
    return "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"


def messages_usage(usage: UsageJson | None) -> MessagesUsageJson:
    """Token counts under Anthropic's names; missing counts are 0, because clients add them up."""
    counts = usage if isinstance(usage, dict) else UsageJson()
    details = counts.get("input_tokens_details")
    cached = (details.get("cached_tokens") if isinstance(details, dict) else 0) or 0
    return {
        "input_tokens": max(0, (counts.get("input_tokens") or 0) - cached),
        "output_tokens": counts.get("output_tokens") or 0,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def error_body(status: int, message: str) -> ErrorBodyJson:
    """An error in Anthropic's shape."""
    return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "api_error"), "message": message}}
