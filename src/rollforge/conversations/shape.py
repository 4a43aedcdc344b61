"""Writes messages with a trainer's key names, and reads them back.

Trainers and templates differ in the form of call arguments (object, JSON string, text), tool schemas (list, JSON string, system
text) and reasoning (field, `<think>` in the text, none). A `Shaping` names one form of each; `unshape` inverts `shape`, except
for information that the shaping drops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Final, Literal, TypedDict, cast

import msgspec

from rollforge.conversations.messages import (
    NOT_AN_OBJECT,
    ChatMessage,
    FunctionCall,
    Inexpressible,
    is_object,
)
from rollforge.records import from_json, to_json
from rollforge.runtime.typed_decoding import decode_json

Arguments = Literal["object", "string", "text"]
Tools = Literal["list", "string", "system"]
Reasoning = Literal["field", "think", "drop"]
Keys = Literal["uniform", "present"]

TOOL_KEYS = ("tool_calls", "tool_call_id", "name")
REASONING_KEY: Final = "reasoning_content"


class Shaping(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are written."""

    arguments: Arguments = "object"
    tools: Tools = "list"
    reasoning: Reasoning = "field"
    keys: Keys = "present"
    """`uniform`: every message has all keys that occur in its column; keys without a value are null."""


class ImageUrlRow(TypedDict):
    """URL of an image."""

    url: str


class PartRow(TypedDict, total=False):
    """A part of a message with images."""

    type: str
    text: str
    image_url: ImageUrlRow


class FunctionRow(TypedDict):
    """The function of a call; its arguments are text, or JSON as the model wrote it."""

    name: str
    arguments: object


class CallRow(TypedDict):
    """A function call."""

    id: str
    type: str
    function: FunctionRow


class MessageRow(TypedDict, total=False):
    """A message in the trainer's format."""

    role: str
    content: str | list[PartRow]
    reasoning_content: str | None
    tool_calls: list[CallRow] | None
    tool_call_id: str | None
    name: str | None


def shape(
    messages: Iterable[ChatMessage], shaping: Shaping, keys: frozenset[str] = frozenset()
) -> list[MessageRow]:
    """The messages as objects; with uniform keys, `keys` are the optional ones that the column uses."""
    if shaping.keys == "uniform" and keys:
        order = [key for key in (REASONING_KEY, *TOOL_KEYS) if key in keys]
        return [_uniform(_shape_one(message, shaping), order) for message in messages]
    return [_shape_one(message, shaping) for message in messages]


class _CallLine(msgspec.Struct, gc=False):
    """A call, ready to encode."""

    id: str
    type: str
    function: _FunctionLine


class _FunctionLine(msgspec.Struct, gc=False):
    """The function of a call, ready to encode."""

    name: str
    arguments: str | msgspec.Raw


class MessageLine(msgspec.Struct, gc=False):
    """A message ready to encode: the same fields and order as the objects of `shape`; `UNSET` fields are omitted."""

    role: str
    content: object
    reasoning_content: object
    tool_calls: object
    tool_call_id: object
    name: object


def shape_for_lines(
    messages: Iterable[ChatMessage], shaping: Shaping, keys: frozenset[str] = frozenset()
) -> tuple[list[MessageLine], frozenset[str]]:
    """`shape` and `keys_used` in one pass, for rows that are encoded next: texts that are already JSON keep their bytes."""
    absent = _absent(keys if shaping.keys == "uniform" else frozenset())
    has_field, has_calls = shaping.reasoning == "field", shaping.arguments != "text"
    is_bare = has_calls and shaping.reasoning != "think"
    thinks = has_called = has_results = False
    written = []
    for message in messages:
        thought, calls, call_id, name = absent
        if has_field:
            thought_text = message.raw_thought if message.thought is None else message.thought
            if thought_text is not None and message.has_reasoning:
                thought = thought_text
                thinks = True
        if has_calls:
            if message.calls:
                calls = [_call_line(call, shaping.arguments) for call in message.calls]
                has_called = True
            if message.call_id is not None:
                call_id = message.call_id
                name = message.name if message.name is not None else name
                has_results = True
        content: object
        if is_bare and not message.images:
            content = message.raw if message.text is None else message.text
        else:
            content = _encoded_content(message, shaping)
        written.append(MessageLine(message.role, content, thought, calls, call_id, name))
    return written, _KEYS[thinks, has_called, has_results]


@cache
def _absent(keys: frozenset[str]) -> tuple[object, ...]:
    """Value of each optional key in a message without it: null if every message has all keys."""
    return tuple(None if key in keys else msgspec.UNSET for key in (REASONING_KEY, *TOOL_KEYS))


def _call_line(call: FunctionCall, form: Arguments) -> _CallLine:
    arguments = call.arguments if form == "string" else object_bytes(call)
    return _CallLine(call.id, "function", _FunctionLine(call.name, arguments))


def _uniform(row: MessageRow, order: list[str]) -> MessageRow:
    if len(row) == 2:
        return cast("MessageRow", {**row, **dict.fromkeys(order)})
    optional = {key: row.get(key) for key in order}
    return cast("MessageRow", {"role": row["role"], "content": row["content"], **optional})


def keys_used(messages: Iterable[ChatMessage], shaping: Shaping) -> frozenset[str]:
    """The optional keys that these messages need."""
    has_thought = has_calls = has_results = False
    for message in messages:
        if message.calls:
            has_calls = True
        if message.call_id is not None:
            has_results = True
        if not has_thought and message.has_reasoning:
            has_thought = True
    is_text = shaping.arguments == "text"
    return _KEYS[
        has_thought and shaping.reasoning == "field", has_calls and not is_text, has_results and not is_text
    ]


_KEYS = {
    (thought, calls, results): frozenset(
        [REASONING_KEY] * thought + list(TOOL_KEYS[:1]) * calls + list(TOOL_KEYS[1:]) * results
    )
    for thought, calls, results in product((False, True), repeat=3)
}


def _shape_one(message: ChatMessage, shaping: Shaping) -> MessageRow:
    row: MessageRow = {"role": message.role, "content": _content(message, shaping)}
    if shaping.reasoning == "field" and message.has_reasoning:
        row[REASONING_KEY] = message.reasoning
    if shaping.arguments == "text":
        return row
    if message.calls:
        row["tool_calls"] = [_shape_call(call, shaping.arguments) for call in message.calls]
    if message.call_id is not None:
        row["tool_call_id"] = message.call_id
        if message.name is not None:
            row["name"] = message.name
    return row


def _encoded_content(message: ChatMessage, shaping: Shaping) -> object:
    """The value of `content`; still encoded (`msgspec.Raw`) if nothing changes it."""
    has_thought = shaping.reasoning == "think" and message.has_reasoning
    has_calls = shaping.arguments == "text" and bool(message.calls)
    if message.text is None and not (has_thought or has_calls or message.images):
        return message.raw
    return _content(message, shaping)


def _content(message: ChatMessage, shaping: Shaping) -> str | list[PartRow]:
    """The value of `content`, decoded."""
    has_thought = shaping.reasoning == "think" and message.has_reasoning
    has_calls = shaping.arguments == "text" and bool(message.calls)
    content = message.content
    if has_calls:
        content = call_text(content, message.calls)
    if has_thought:  # the spacing with which templates that parse the block write it back
        content = f"<think>\n{message.reasoning}\n</think>\n\n{content}"
    if message.images:
        images: list[PartRow] = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        return [*images, {"type": "text", "text": content}]
    return content


def _shape_call(call: FunctionCall, form: Arguments) -> CallRow:
    arguments: object = call.arguments if form == "string" else object_bytes(call)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def object_bytes(call: FunctionCall) -> msgspec.Raw:
    """The call's arguments as an object whose numbers keep their digits.

    Raises:
        Inexpressible: the model did not write a JSON object.
    """
    arguments = call.arguments
    if not call.is_checked and not is_object(arguments):
        raise Inexpressible(NOT_AN_OBJECT)
    if "\n" in arguments or "\r" in arguments:  # legal white space in JSON, the end of a row in JSONL
        arguments = arguments.replace("\r", " ").replace("\n", " ")
    return msgspec.Raw(arguments.encode())


def call_text(content: str, calls: Iterable[FunctionCall]) -> str:
    """The text followed by the calls as `<tool_call>` blocks."""
    blocks = [
        f'<tool_call>\n{{"name": {to_json(call.name).decode()}, "arguments": {bytes(object_bytes(call)).decode()}}}'
        "\n</tool_call>"
        for call in calls
    ]
    return "\n".join([content, *blocks] if content else blocks)


SCHEMAS_HEAD = "You can call these functions:\n<tools>\n"
SCHEMAS_TAIL = "\n</tools>"
CALLS_NOTE = '\nTo call one, write <tool_call>\n{"name": "the function", "arguments": {"an argument": "its value"}}\n</tool_call>'


def tools_in_system(messages: list[ChatMessage], tools: bytes | None, *, as_text: bool) -> list[ChatMessage]:
    """Write the schemas into the system message, for trainers without a `tools` column."""
    if tools is None:
        return messages
    lines = "\n".join(bytes(tool).decode() for tool in decode_json(tools, list[msgspec.Raw]))
    text = SCHEMAS_HEAD + lines + SCHEMAS_TAIL + (CALLS_NOTE if as_text else "")
    if messages and messages[0].role == "system":
        first = messages[0]
        return [ChatMessage("system", f"{first.content}\n\n{text}" if first.content else text), *messages[1:]]
    return [ChatMessage("system", text), *messages]


def tools_from_system(messages: list[ChatMessage]) -> tuple[list[ChatMessage], bytes | None]:
    """The inverse of `tools_in_system`."""
    if not messages or messages[0].role != "system" or SCHEMAS_HEAD not in messages[0].content:
        return messages, None
    head, _, rest = messages[0].content.rpartition(SCHEMAS_HEAD)
    lines = rest.partition(SCHEMAS_TAIL)[0].split("\n")
    tools = to_json([msgspec.Raw(line.encode()) for line in lines])
    system = head.removesuffix("\n\n")
    return ([ChatMessage("system", system)] if system else []) + messages[1:], tools


_THINK = re.compile(r"\A<think>\n(.*?)\n</think>\n\n", re.DOTALL)
_CALL = re.compile(r'\n?<tool_call>\n\{"name": (".*?(?<!\\)"), "arguments": (.*?)\}\n</tool_call>', re.DOTALL)


def unshape(rows: Iterable[MessageRow], shaping: Shaping) -> list[ChatMessage]:
    """Messages from written rows; call ids are renumbered if the shaping wrote calls as text."""
    messages = []
    numbers = iter(range(1 << 30))
    for row in rows:
        content, reasoning = row["content"], row.get(REASONING_KEY)
        images = []
        if isinstance(content, list):
            images = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
            content = "".join(part["text"] for part in content if part["type"] == "text")
        calls = [_unshape_call(call) for call in row.get("tool_calls") or []]
        if row["role"] == "assistant":
            if shaping.reasoning == "think" and (match := _THINK.match(content)):
                reasoning, content = match[1], content[match.end() :]
            if shaping.arguments == "text":
                calls = [
                    FunctionCall(f"call_{next(numbers)}", from_json(m[1]), m[2])
                    for m in _CALL.finditer(content)
                ]
                content = _CALL.sub("", content)
        messages.append(
            ChatMessage(
                row["role"], content, reasoning, calls, row.get("tool_call_id"), row.get("name"), images
            )
        )
    return messages


def _unshape_call(call: CallRow) -> FunctionCall:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else to_json(arguments).decode()
    return FunctionCall(call["id"], call["function"]["name"], text)
