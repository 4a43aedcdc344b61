"""Server side of Chat Completions: requests become Responses-shaped params, Responses objects become completions."""

from __future__ import annotations

from typing import cast

from rollforge.json_shapes import (
    ChatBodyJson,
    ChatCallJson,
    ChatChoiceJson,
    ChatCompletionJson,
    ChatFunctionCallJson,
    ChatMessageJson,
    ChatUsageJson,
    FormatJson,
    ItemJson,
    ParamsJson,
    PartJson,
    ResponseJson,
    ToolChoiceJson,
    ToolJson,
    UsageJson,
    parts_in,
    without,
)
from rollforge.records import content_text

_RENAMED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "response_format"),
        *("reasoning_effort", "stream", "stream_options", "n", "functions", "function_call", "logprobs"),
        *("store", "modalities", "prediction", "service_tier"),
    }
)
"""Fields with another name in the Responses API, or that only concern how the answer is delivered."""


def params_from_chat(body: ChatBodyJson) -> ParamsJson:
    """Equivalent Responses params; raises `ValueError` for requests without an equivalent."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list with at least one message")
    if body.get("n") not in (None, 1):
        raise ValueError("n must be 1: a recorded call has one answer")
    params = cast("ParamsJson", without(body, _RENAMED))
    params["input"] = [item for message in messages for item in _items(message)]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        params["max_output_tokens"] = limit
    if tools := body.get("tools"):
        params["tools"] = [_flat_tool(tool) for tool in tools]
        if (choice := body.get("tool_choice")) is not None:
            params["tool_choice"] = _flat_choice(choice)
    if effort := body.get("reasoning_effort"):
        params["reasoning"] = {"effort": effort}
    wanted = body.get("response_format")
    if isinstance(wanted, dict):
        params["text"] = {"format": _flat_format(wanted)}
    return params


def _flat_tool(tool: ToolJson) -> ToolJson:
    """A tool without chat's nested `function`."""
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        return cast("ToolJson", {"type": "function", **tool["function"]})
    return tool


def _flat_choice(choice: str | ToolChoiceJson) -> str | ToolChoiceJson:
    """A tool choice without chat's nested `function`."""
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        return cast("ToolChoiceJson", {"type": "function", **choice["function"]})
    return choice


def _flat_format(wanted: FormatJson) -> FormatJson:
    inner = wanted.get("json_schema")
    return {"type": "json_schema", **inner} if isinstance(inner, dict) else wanted


def _items(message: ChatMessageJson) -> list[ItemJson]:
    if not isinstance(message, dict):
        raise ValueError(f"messages must hold objects, not {type(message).__name__}")
    role = message.get("role")
    if role == "tool":
        output = message.get("content")
        text = output if isinstance(output, str) else content_text(output)
        return [
            {
                "type": "function_call_output",
                "call_id": str(message.get("tool_call_id") or ""),
                "output": text,
            }
        ]
    if role not in ("system", "developer", "user", "assistant"):
        raise ValueError(f"unknown role {role!r}")
    items: list[ItemJson] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]})
    calls = [call for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    content = _parts(message.get("content"), role)
    if content or not calls:
        items.append({"type": "message", "role": role, "content": content})
    for call in calls:
        function = call.get("function") or ChatFunctionCallJson()
        items.append(
            {
                "type": "function_call",
                "call_id": str(call.get("id") or ""),
                "name": str(function.get("name") or ""),
                "arguments": str(function.get("arguments") or ""),
            }
        )
    return items


def _parts(content: str | list[PartJson] | None, role: str) -> str | list[PartJson]:
    """Content as parts of the Responses API; plain text stays text."""
    if not isinstance(content, list):
        return content or ""
    if all(isinstance(part, dict) and part.get("type") in ("text", "refusal") for part in content):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    kind = "output_text" if role == "assistant" else "input_text"
    parts: list[PartJson] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text":
            parts.append({"type": kind, "text": part.get("text") or ""})
        elif isinstance(part, dict) and part.get("type") == "image_url":
            image = part.get("image_url")
            parts.append(
                {"type": "input_image", "image_url": image.get("url") if isinstance(image, dict) else image}
            )
        else:
            parts.append(part)
    return parts


def chat_from_response(response: ResponseJson, model: str) -> ChatCompletionJson:
    """A Responses object as a chat completion, without token ids and logprobs."""
    message: ChatMessageJson = {"role": "assistant", "content": None, "refusal": None}
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ChatCallJson] = []
    for item in response.get("output") or []:
        match item.get("type"):
            case "reasoning":
                thoughts += [part.get("text") or "" for part in reasoning_parts(item)]
            case "message":
                texts.append(content_text(item.get("content")))
                message["refusal"] = refusal_of(item) or message["refusal"]
            case "function_call":
                function: ChatFunctionCallJson = {
                    "name": item.get("name"),
                    "arguments": item.get("arguments") or "",
                }
                calls.append({"id": item.get("call_id"), "type": "function", "function": function})
    text = "".join(texts)
    message["content"] = text or (None if calls or message["refusal"] else "")
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    choice: ChatChoiceJson = {
        "index": 0,
        "message": message,
        "finish_reason": finish_of(response, bool(calls)),
        "logprobs": None,
    }
    return {
        "id": response.get("id") or "chatcmpl-0",
        "object": "chat.completion",
        "created": response.get("created_at") or 0,
        "model": model,
        "choices": [choice],
        "usage": chat_usage(response.get("usage")),
    }


def finish_of(response: ResponseJson, has_calls: bool) -> str:
    """Chat's finish reason for a Responses object."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason:
        return "length" if reason == "max_output_tokens" else str(reason)
    return "tool_calls" if has_calls else "stop"


def refusal_of(item: ItemJson) -> str | None:
    """The refusal in a message, if it is one."""
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "refusal":
            return str(part.get("refusal") or "")
    return None


def reasoning_parts(item: ItemJson) -> list[PartJson]:
    """The parts of a reasoning item that contain text."""
    return [*parts_in(item.get("summary")), *parts_in(item.get("content"))]


def chat_usage(usage: UsageJson | None) -> ChatUsageJson | None:
    """Token counts under chat's names."""
    if not isinstance(usage, dict):
        return None
    names = {
        "input_tokens": "prompt_tokens",
        "input_tokens_details": "prompt_tokens_details",
        "output_tokens": "completion_tokens",
        "output_tokens_details": "completion_tokens_details",
    }
    return cast("ChatUsageJson", {names.get(str(key), str(key)): value for key, value in usage.items()})
