"""Responses items as chat messages: the only module that handles both.

An item without a chat equivalent raises `Inexpressible` with a reason that is counted; a rewritten item adds a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import msgspec

from rollforge.conversations.messages import ChatMessage, FunctionCall, Inexpressible, TokenRecord, is_text
from rollforge.records import to_json

ImagePolicy = str
"""`refuse` or `pass`."""


class ContentPart(msgspec.Struct, gc=False):
    """A part of an item's content."""

    type: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"null")
    refusal: str | None = None
    image_url: Any = None


class ResponseItem(msgspec.Struct, gc=False):
    """The fields of a Responses item that conversion reads."""

    type: str | None = None
    role: str | None = None
    content: str | list[ContentPart | str] | None = None
    summary: list[ContentPart | str] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    id: str | None = None
    call_id: str | None = None
    arguments: Any = None
    output: msgspec.Raw = msgspec.Raw(b"null")
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    generation_token_ids: msgspec.Raw = msgspec.Raw()
    generation_log_probs: msgspec.Raw = msgspec.Raw()


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    function: msgspec.Raw = msgspec.Raw()


_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def fold(
    items: Iterable[ResponseItem], call_names: dict[str, str], marks: set[str], images: ImagePolicy = "refuse"
) -> list[ChatMessage]:
    """Convert items in order to messages; adjacent reasoning, text and calls of the model become one assistant message."""
    messages: list[ChatMessage] = []
    turn: ChatMessage | None = None
    for item in items:
        kind = item.type or ("message" if item.role else "")
        if kind == "message" and item.role != "assistant":
            turn = None
            messages.append(_other_message(item, marks, images))
        elif kind == "function_call_output":
            turn = None
            messages.append(_tool_result(item, call_names, marks))
        else:
            if turn is None:
                turn = ChatMessage("assistant")
                messages.append(turn)
            if kind == "function_call":
                call = _call(item, len(call_names), marks)
                call_names[call.id] = call.name
                turn.calls = [*turn.calls, call]
            elif kind == "message":
                _add_text(turn, item, marks)
            elif kind == "reasoning":
                _add_reasoning(turn, item, marks)
            else:
                raise Inexpressible(f"item type {kind}" if kind else "an item without type and role")
    return messages


def _add_text(turn: ChatMessage, item: ResponseItem, marks: set[str]) -> None:
    content = item.content
    if turn.text == "" and isinstance(content, list) and len(content) == 1 and not turn.calls:
        part = content[0]
        if isinstance(part, ContentPart) and part.type == "output_text" and is_text(part.text):
            turn.text, turn.raw = None, part.text
            return
    text, _ = text_of(content, marks, "refuse")
    if turn.calls and text:
        marks.add("text after a call moved before it")
    turn.add_text(text)


def _add_reasoning(turn: ChatMessage, item: ResponseItem, marks: set[str]) -> None:
    if turn.text != "" or turn.calls:
        marks.add("interleaved reasoning joined")
    parts = item.summary
    is_first = turn.thought is None and turn.raw_thought is None
    if (
        is_first
        and parts
        and len(parts) == 1
        and isinstance(parts[0], ContentPart)
        and is_text(parts[0].text)
    ):
        turn.raw_thought = parts[0].text
        return
    text = _reasoning(item, marks)
    turn.thought = text if is_first else f"{turn.reasoning}\n{text}"
    turn.raw_thought = None


def _part_text(part: ContentPart) -> str:
    text = msgspec.json.decode(part.text)
    if text is not None and not isinstance(text, str):
        raise Inexpressible("content part whose text is no text")
    return text or ""


def _other_message(item: ResponseItem, marks: set[str], images: ImagePolicy) -> ChatMessage:
    if item.role not in ("user", "system", "developer"):
        raise Inexpressible(f"message role {item.role}")
    if item.role == "developer":
        marks.add("developer role")
    text, urls = text_of(item.content, marks, images)
    return ChatMessage(item.role, text, images=urls)


def text_of(
    content: str | list[ContentPart | str] | None, marks: set[str], images: ImagePolicy
) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    urls: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.type in _TEXT_PARTS or (part.type is None and is_text(part.text)):
            texts.append(_part_text(part))
            if part.type == "input_text":
                marks.add("list content joined")
        elif part.type == "refusal":
            marks.add("refusal kept as text")
            texts.append(part.refusal or "")
        elif part.type in ("input_image", "image_url") and images == "pass":
            marks.add("image passed by its address")
            urls.append(_image_url(part.image_url))
        else:
            raise Inexpressible(f"content part {part.type or 'without type'}")
    return "".join(texts), urls


def _image_url(value: object) -> str:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise Inexpressible("image without an address")
    return url


def _reasoning(item: ResponseItem, marks: set[str]) -> str:
    """The summary, else the raw reasoning text; encrypted reasoning is dropped, as trainers cannot use it."""
    for parts in (item.summary, item.content):
        if isinstance(parts, str):
            return parts
        texts = [part if isinstance(part, str) else _part_text(part) for part in parts or []]
        if texts:
            return "\n".join(texts)
    if item.encrypted_content:
        marks.add("encrypted reasoning left out")
    return ""


def _call(item: ResponseItem, number: int, marks: set[str]) -> FunctionCall:
    arguments = item.arguments
    if arguments is None or arguments == "":
        marks.add("empty arguments written as {}")
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = to_json(arguments).decode()
    if not item.name:
        raise Inexpressible("function call without a name")
    return FunctionCall(item.call_id or item.id or f"call_{number}", item.name, arguments)


def _tool_result(item: ResponseItem, call_names: dict[str, str], marks: set[str]) -> ChatMessage:
    call_id = item.call_id or ""
    if call_id not in call_names:
        marks.add("tool result without its call")
    name = call_names.get(call_id)
    if is_text(item.output):
        return ChatMessage("tool", None, call_id=call_id, name=name, raw=item.output)
    text = _other_output(msgspec.json.decode(item.output), bytes(item.output), marks)
    return ChatMessage("tool", text, call_id=call_id, name=name)


def _other_output(output: object, raw: bytes, marks: set[str]) -> str:
    """A tool output that is not a string: text parts are joined, null is empty, anything else stays JSON."""
    if not isinstance(output, list):
        return "" if output is None else raw.decode()
    texts = []
    for part in output:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Inexpressible(f"tool result part {kind}")
        texts.append(part["text"])
    marks.add("list content joined")
    return "".join(texts)


def chat_tools(raw: msgspec.Raw | bytes) -> bytes | None:
    """Tool schemas in chat form as JSON text, with unchanged parameter bytes; None without tools."""
    tools = _decode_tools(raw)
    if not tools:
        return None
    return to_json([_chat_tool(tool) for tool in tools])


class _FunctionLine(TypedDict, total=False):
    name: str
    description: str
    parameters: msgspec.Raw


class _ToolLine(TypedDict):
    """A tool in chat form, ready to encode."""

    type: str
    function: _FunctionLine | msgspec.Raw


def _chat_tool(tool: _Tool) -> _ToolLine:
    if bytes(tool.function):
        return {"type": "function", "function": tool.function}
    if tool.type not in (None, "function") or not tool.name:
        raise Inexpressible(f"tool type {tool.type}")
    function: _FunctionLine = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if bytes(tool.parameters) != b"null":
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def tokens_of(items: Sequence[ResponseItem]) -> list[TokenRecord]:
    """The token record of each model call, in order; calls without generated tokens have none."""
    return [
        TokenRecord(
            _array(item.prompt_token_ids),
            _array(item.generation_token_ids),
            _array(item.generation_log_probs),
        )
        for item in items
        if len(_array(item.generation_token_ids)) > 2
    ]


def _array(raw: msgspec.Raw) -> msgspec.Raw:
    """The JSON array; an empty one for a missing or null value."""
    return raw if len(raw) and memoryview(raw)[0] == ord("[") else msgspec.Raw(b"[]")
