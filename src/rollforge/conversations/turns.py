"""Rollout rows of any format as turns: texts by role, tool calls and tool results.

For people who read a rollout. Nothing is hidden: what has no known shape is shown as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from rollforge.json_shapes import ItemJson, OwnJson, PartJson, RowJson, SequenceJson, played_in
from rollforge.records import OWN_KEY, PARAMS_KEY, content_text
from rollforge.store.reading import UNREADABLE


class Turn(Struct, frozen=True):
    """One piece of a rollout; `sequence` is the heading of a further sequence, `program` the output of the agent's program."""

    kind: Literal[
        "system", "user", "assistant", "reasoning", "tool call", "tool output", "sequence", "program", "other"
    ]
    text: str
    title: str = ""


def turns_of(row: RowJson) -> list[Turn]:
    """The prompt and all following turns, for any row format."""
    if isinstance(row.get("messages"), list):
        return [turn for message in row["messages"] for turn in _chat_turns(message)]
    if PARAMS_KEY not in row and ("prompt" in row or "completion" in row):
        sides = ((row.get("prompt"), "user"), (row.get("completion"), "assistant"))
        return [turn for value, role in sides for turn in _chat_side(value, role)]
    params, response = row.get(PARAMS_KEY), row.get("response")
    own_value = row.get(OWN_KEY)
    own = own_value if isinstance(own_value, dict) else OwnJson()
    turns = _asked(played_in(own) or params)
    if isinstance(response, dict):
        turns += _items(response.get("output"), default="assistant")
    sequences = own.get("sequences")
    for number, sequence in enumerate(sequences if isinstance(sequences, list) else []):
        if isinstance(sequence, dict) and isinstance(sequence.get("output"), list):
            turns.append(Turn("sequence", "", _sequence_title(number, sequence)))
            turns += [*_asked(sequence.get("prompt")), *_items(sequence["output"], default="assistant")]
    return [*turns, *_program(own.get("program"))]


def _sequence_title(number: int, sequence: SequenceJson) -> str:
    turns = sequence.get("turns")
    many = f"{turns} turn" if turns == 1 else f"{turns} turns"
    return f"{number}: {sequence.get('role')}, {many}, {sequence.get('fidelity')}"


def _program(program: object) -> Iterator[Turn]:
    """Output and ending of the agent's program; nothing if it printed nothing and ended well."""
    if not isinstance(program, dict):
        return
    for name in ("stdout", "stderr"):
        if isinstance(program.get(name), str) and program[name]:
            yield Turn("program", program[name], name)
    if program.get("exit_code"):
        yield Turn("program", "", f"exit code {program['exit_code']}")


def _asked(params: object) -> list[Turn]:
    """Turns of a prompt."""
    if not isinstance(params, dict):
        return []
    system = [Turn("system", str(params["instructions"]))] if params.get("instructions") else []
    return [*system, *_items(params.get("input"))]


def _items(items: object, default: Literal["user", "assistant"] = "user") -> Iterator[Turn]:
    if isinstance(items, str):
        yield Turn(default, items)
        return
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            yield from _item(cast("ItemJson", item), default)
        else:
            yield Turn("other", _pretty(item), "not an item")


def _item(item: ItemJson, default: str) -> Iterator[Turn]:
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
    """Text of a message, with refusals marked; content of an unknown form is shown unchanged."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return _pretty(content)
    refusals = [part["refusal"] for part in content if isinstance(part, dict) and part.get("refusal")]
    text = content_text(content) + "".join(f"[refusal] {refusal}" for refusal in refusals)
    others = [
        _other_part(part)
        for part in content
        if not isinstance(part, dict) or not _has_text(cast("PartJson", part))
    ]
    return "\n".join([text, *others] if text else others)


def _has_text(part: PartJson) -> bool:
    return isinstance(part.get("text"), str) or bool(part.get("refusal"))


def _other_part(part: object) -> str:
    """A non-text part: images and files as one line without their data."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return _pretty(part)
    part_json = msgspec.json.encode({key: value for key, value in part.items() if key != "type"}).decode()
    shown = (
        part_json
        if len(part_json) <= _PART_CHARS
        else f"{part_json[:_PART_CHARS]}… ({len(part_json):,} characters)"
    )
    return f"[{part['type']}] {shown}"


_PART_CHARS = 120


def _tool_call(call: object) -> Turn:
    """One call of a chat message; a call without a function name is shown unchanged."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not {"name", "arguments"} & set(function):
        return Turn("tool call", _pretty(call))
    return Turn("tool call", _pretty(function.get("arguments")), str(function.get("name") or ""))


def _pretty(value: object) -> str:
    """JSON pretty-printed; other text unchanged."""
    if not isinstance(value, str):
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    try:
        decoded = msgspec.json.decode(value)
    except UNREADABLE:
        return value
    return msgspec.json.format(value, indent=2) if isinstance(decoded, dict | list) else value
