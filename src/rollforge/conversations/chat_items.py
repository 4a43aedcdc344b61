"""Chat messages of other libraries as Responses items, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, cast

from rollforge.json_shapes import ChatCallJson, ChatMessageJson, ItemJson, PartJson
from rollforge.records import content_text, to_json


def message_of(value: Any) -> ChatMessageJson:
    """A message as a dict, from a dict or a pydantic model."""
    return cast("ChatMessageJson", _plain(value))


def _plain(value: Any) -> object:
    return dict(value) if isinstance(value, Mapping) else value.model_dump(exclude_none=True)


def items_of(messages: object) -> list[ItemJson]:
    """Chat messages as Responses items; a plain text is one user message."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages, "type": "message"}]
    return (
        [item for one in messages for item in _items(message_of(one))] if isinstance(messages, list) else []
    )


def _items(message: ChatMessageJson) -> Iterator[ItemJson]:
    role = message.get("role")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": content_text(message.get("content")),
        }
        return
    yield from _reasoning(message)
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    content = message.get("content")
    if content or not calls:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [part for part in content if not _is_reasoning(part)] if isinstance(content, list) else None
        shown: Any = [_part(part, kind) for part in parts] if parts is not None else content or ""
        yield {"type": "message", "role": "user" if role == "text" else role, "content": shown}
    for call in calls:
        yield _call(cast("_CallJson", _plain(call)))


def _reasoning(message: ChatMessageJson) -> Iterator[ItemJson]:
    content = message.get("content")
    parts = (
        [_plain_part(part) for part in content if _is_reasoning(part)] if isinstance(content, list) else []
    )
    texts = [message.get("reasoning_content"), *(part.get("reasoning") for part in parts)]
    for text in texts:
        if isinstance(text, str) and text:
            yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def _is_reasoning(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "reasoning"


class _PartJson(PartJson, total=False):
    reasoning: str
    image: str


def _plain_part(part: object) -> _PartJson:
    return cast("_PartJson", _plain(part))


def _part(part: object, kind: str) -> PartJson:
    plain = _plain_part(part)
    if plain.get("type") == "text":
        return {"type": kind, "text": plain.get("text")}
    if plain.get("type") == "image":
        return {"type": "input_image", "image_url": plain.get("image")}
    if plain.get("type") == "image_url":
        source = plain.get("image_url")
        return {"type": "input_image", "image_url": source.get("url") if isinstance(source, dict) else source}
    return plain


class _FunctionJson(TypedDict, total=False):
    name: str
    function_name: str
    arguments: str | Mapping[str, object] | None


class _CallJson(_FunctionJson, total=False):
    """One call; the function is nested, a name, or absent, and arguments are text or an object."""

    id: str
    tool_call_id: str
    function: str | _FunctionJson


def _call(call: _CallJson) -> ItemJson:
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    name = function if isinstance(function, str) else inner.get("name") or inner.get("function_name")
    arguments = inner.get("arguments")
    return {
        "type": "function_call",
        "call_id": call.get("id") or call.get("tool_call_id"),
        "name": name,
        "arguments": arguments if isinstance(arguments, str) else to_json(arguments or {}).decode(),
    }


def messages_of_response(items: list[ItemJson]) -> list[ChatMessageJson]:
    """The items of a response as chat messages."""
    messages: list[ChatMessageJson] = []
    for item in items:
        kind = item.get("type")
        if kind == "message":
            messages.append(
                {"role": item.get("role") or "assistant", "content": content_text(item.get("content"))}
            )
        elif kind == "function_call":
            call: ChatCallJson = {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id"),
                    "content": str(item.get("output") or ""),
                }
            )
    return messages
