"""Rollout rows of any shape as turns: who said what, which tool was called, what came back.

For people who read a rollout. Nothing is hidden: what has no known shape is shown as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rollforge.records import PARAMS_KEY, JsonFields, JsonObject, content_text
from rollforge.store.reading import UNREADABLE


class Turn(Struct, frozen=True):
    """One piece of a rollout."""

    kind: Literal["system", "user", "assistant", "reasoning", "tool call", "tool output", "other"]
    text: str
    title: str = ""


_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot hold."""


def read_row(line: bytes) -> JsonFields:
    """Decode a row; NaN becomes null and half a surrogate pair `⟨U+D800⟩`, so that any line a model produced can be read."""
    try:
        row: JsonFields = msgspec.json.decode(line)
    except UNREADABLE:
        value = json.loads(line, parse_constant=lambda _: None)
        text = _HALF.sub(lambda half: f"⟨U+{ord(half[0]):04X}⟩", json.dumps(value, ensure_ascii=False))
        row = msgspec.json.decode(text.encode("utf-8"))
    return row


def turns_of(row: JsonObject) -> list[Turn]:
    """The prompt and everything that followed, whatever form the row has."""
    if isinstance(row.get("messages"), list):
        return [turn for message in row["messages"] for turn in _chat_turns(message)]
    if PARAMS_KEY not in row and ("prompt" in row or "completion" in row):
        sides = ((row.get("prompt"), "user"), (row.get("completion"), "assistant"))
        return [turn for value, role in sides for turn in _chat_side(value, role)]
    params, response = row.get(PARAMS_KEY), row.get("response")
    turns: list[Turn] = []
    if isinstance(params, dict):
        if params.get("instructions"):
            turns.append(Turn("system", str(params["instructions"])))
        turns += _items(params.get("input"))
    if isinstance(response, dict):
        turns += _items(response.get("output"), default="assistant")
    return turns


def _items(items: object, default: Literal["user", "assistant"] = "user") -> Iterator[Turn]:
    if isinstance(items, str):
        yield Turn(default, items)
        return
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            yield from _item(item, default)
        else:
            yield Turn("other", _pretty(item), "not an item")


def _item(item: JsonFields, default: str) -> Iterator[Turn]:
    kind = item.get("type") or "message"
    if kind == "message":
        yield from _chat_turns({"role": default, **item})
    elif kind == "reasoning":
        parts = [content_text(item.get(key)) for key in ("summary", "content")]
        yield Turn("reasoning", "\n".join(part for part in parts if part))
    elif kind == "function_call":
        yield Turn("tool call", _pretty(item.get("arguments")), str(item.get("name") or ""))
    elif kind == "function_call_output":
        yield Turn("tool output", _pretty(item.get("output")))
    else:
        yield Turn("other", _pretty(item), str(kind))


def _chat_side(value: object, role: str) -> Iterator[Turn]:
    if isinstance(value, list):
        for message in value:
            yield from _chat_turns(
                message if isinstance(message, dict) else {"role": role, "content": message}
            )
    elif value is not None:
        yield from _chat_turns({"role": role, "content": value})


_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool output",
}


def _chat_turns(message: object) -> Iterator[Turn]:
    if not isinstance(message, dict):
        yield Turn("other", _pretty(message), "not a message")
        return
    role = str(message.get("role"))
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            yield Turn("reasoning", message[key])
    text = _said(message.get("content"))
    if text or not message.get("tool_calls"):
        kind: Any = _ROLES.get(role, "other")
        yield Turn(kind, text, "" if kind != "other" else role)
    calls = message.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        yield _tool_call(call)


def _said(content: object) -> str:
    """What a message says, refusals marked; content of a form that no API has is shown as it stands."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return _pretty(content)
    refusals = [part["refusal"] for part in content if isinstance(part, dict) and part.get("refusal")]
    text = content_text(content) + "".join(f"[refusal] {refusal}" for refusal in refusals)
    others = [_other_part(part) for part in content if not isinstance(part, dict) or not _has_text(part)]
    return "\n".join([text, *others] if text else others)


def _has_text(part: JsonFields) -> bool:
    return isinstance(part.get("text"), str) or bool(part.get("refusal"))


def _other_part(part: object) -> str:
    """A part that is no text, in one line where it is an image or a file: its data is nothing to read."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return _pretty(part)
    said = msgspec.json.encode({key: value for key, value in part.items() if key != "type"}).decode()
    shown = said if len(said) <= _PART_CHARS else f"{said[:_PART_CHARS]}… ({len(said):,} characters)"
    return f"[{part['type']}] {shown}"


_PART_CHARS = 120


def _tool_call(call: object) -> Turn:
    """One call of a chat message; one that names no function is shown as it stands."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not {"name", "arguments"} & set(function):
        return Turn("tool call", _pretty(call))
    return Turn("tool call", _pretty(function.get("arguments")), str(function.get("name") or ""))


def _pretty(value: object) -> str:
    """JSON laid out over lines; any other text as it is."""
    if not isinstance(value, str):
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    try:
        decoded = msgspec.json.decode(value)
    except UNREADABLE:
        return value
    return msgspec.json.format(value, indent=2) if isinstance(decoded, dict | list) else value
