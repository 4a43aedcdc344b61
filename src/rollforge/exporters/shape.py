"""This module gives messages a trainer's key names, and reads them back.

Three things differ between trainers and templates: where call arguments stand (an object, a JSON string, text), where tool
schemas stand (a list, a JSON string, the system text) and where reasoning stands (a field, `<think>` in the text, nowhere). The
`Shaping` says which; `shape` and `unshape` are each other's inverse for what the shaping keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Literal

import msgspec

from rollforge.exporters.guard import NOT_AN_OBJECT
from rollforge.exporters.messages import Call, Inexpressible, Message, is_object
from rollforge.records import JsonObject, from_json, to_json

Arguments = Literal["object", "string", "text"]
Tools = Literal["list", "string", "system"]
Reasoning = Literal["field", "think", "drop"]
Keys = Literal["uniform", "present"]

TOOL_KEYS = ("tool_calls", "tool_call_id", "name")
REASONING_KEY = "reasoning_content"


class Shaping(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are written."""

    arguments: Arguments = "object"
    tools: Tools = "list"
    reasoning: Reasoning = "field"
    keys: Keys = "present"
    """`uniform`: every message has every key that any message of the data set has, null where it has nothing."""


def shape(
    messages: Iterable[Message], shaping: Shaping, keys: frozenset[str] = frozenset()
) -> list[JsonObject]:
    """The messages as objects; with uniform keys, `keys` are the optional ones that the data set uses."""
    if shaping.keys == "uniform" and keys:
        order = [key for key in (REASONING_KEY, *TOOL_KEYS) if key in keys]
        return [_uniform(_shape_one(message, shaping), order) for message in messages]
    return [_shape_one(message, shaping) for message in messages]


class WrittenCall(msgspec.Struct, gc=False):
    """A call as a line has it."""

    id: str
    type: str
    function: WrittenFunction


class WrittenFunction(msgspec.Struct, gc=False):
    """The function of a call as a line has it."""

    name: str
    arguments: str | msgspec.Raw


class WrittenMessage(msgspec.Struct, gc=False):
    """A message as a line has it: the fields of `shape`'s objects in their order, those that are `UNSET` left out."""

    role: str
    content: object
    reasoning_content: object
    tool_calls: object
    tool_call_id: object
    name: object


def shape_for_lines(
    messages: Iterable[Message], shaping: Shaping, keys: frozenset[str] = frozenset()
) -> tuple[list[WrittenMessage], frozenset[str]]:
    """What `shape` gives, for rows that are encoded next, and what `keys_used` says of them.

    Texts that are JSON already stay the bytes they were.
    """
    absent = _absent(keys if shaping.keys == "uniform" else frozenset())
    has_field, has_calls = shaping.reasoning == "field", shaping.arguments != "text"
    is_bare = has_calls and shaping.reasoning != "think"
    thinks = has_called = has_results = False
    written = []
    for message in messages:
        thought, calls, call_id, name = absent
        if has_field:
            said = message.raw_thought if message.thought is None else message.thought
            if said is not None and message.has_reasoning:
                thought = said
                thinks = True
        if has_calls:
            if message.calls:
                calls = [_written_call(call, shaping.arguments) for call in message.calls]
                has_called = True
            if message.call_id is not None:
                call_id = message.call_id
                name = message.name if message.name is not None else name
                has_results = True
        content: object
        if is_bare and not message.images:
            content = message.raw if message.text is None else message.text
        else:
            content = _content(message, shaping, is_encoded=True)
        written.append(WrittenMessage(message.role, content, thought, calls, call_id, name))
    return written, _KEYS[thinks, has_called, has_results]


@cache
def _absent(keys: frozenset[str]) -> tuple[object, ...]:
    """What stands for each optional key in a message without it: null where every message has the key."""
    return tuple(None if key in keys else msgspec.UNSET for key in (REASONING_KEY, *TOOL_KEYS))


def _written_call(call: Call, form: Arguments) -> WrittenCall:
    arguments = call.arguments if form == "string" else object_bytes(call)
    return WrittenCall(call.id, "function", WrittenFunction(call.name, arguments))


def _uniform(row: JsonObject, order: list[str]) -> JsonObject:
    if len(row) == 2:
        return row | dict.fromkeys(order)
    return {"role": row["role"], "content": row["content"], **{key: row.get(key) for key in order}}


def keys_used(messages: Iterable[Message], shaping: Shaping) -> frozenset[str]:
    """The optional keys that these messages need."""
    has_thought = has_calls = has_results = False
    for message in messages:
        has_calls = has_calls or bool(message.calls)
        has_results = has_results or message.call_id is not None
        has_thought = has_thought or message.has_reasoning
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


def _shape_one(message: Message, shaping: Shaping) -> JsonObject:
    row: JsonObject = {"role": message.role, "content": _content(message, shaping)}
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


def _content(message: Message, shaping: Shaping, *, is_encoded: bool = False) -> object:
    """What stands under `content`; with `is_encoded` it may be JSON already (`msgspec.Raw`)."""
    has_thought = shaping.reasoning == "think" and message.has_reasoning
    has_calls = shaping.arguments == "text" and bool(message.calls)
    if message.text is None and is_encoded and not (has_thought or has_calls or message.images):
        return message.raw
    content = message.content
    if has_calls:
        content = call_text(content, message.calls)
    if has_thought:  # in the very spacing that templates which take the block apart put it together again
        content = f"<think>\n{message.reasoning}\n</think>\n\n{content}"
    if message.images:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        return [*images, {"type": "text", "text": content}]
    return content


def _shape_call(call: Call, form: Arguments) -> JsonObject:
    arguments: object = call.arguments if form == "string" else object_bytes(call)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def object_bytes(call: Call) -> msgspec.Raw:
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


def call_text(content: str, calls: Iterable[Call]) -> str:
    """The calls as `<tool_call>` blocks after the text."""
    blocks = [
        f'<tool_call>\n{{"name": {to_json(call.name).decode()}, "arguments": {bytes(object_bytes(call)).decode()}}}'
        "\n</tool_call>"
        for call in calls
    ]
    return "\n".join([content, *blocks] if content else blocks)


SCHEMAS_HEAD = "You can call these functions:\n<tools>\n"
SCHEMAS_TAIL = "\n</tools>"
CALLS_NOTE = '\nTo call one, write <tool_call>\n{"name": "the function", "arguments": {"an argument": "its value"}}\n</tool_call>'


def tools_in_system(messages: list[Message], tools: bytes | None, *, as_text: bool) -> list[Message]:
    """The schemas written into the system message, for trainers that carry no `tools`."""
    if tools is None:
        return messages
    lines = "\n".join(bytes(tool).decode() for tool in msgspec.json.decode(tools, type=list[msgspec.Raw]))
    text = SCHEMAS_HEAD + lines + SCHEMAS_TAIL + (CALLS_NOTE if as_text else "")
    if messages and messages[0].role == "system":
        first = messages[0]
        return [Message("system", f"{first.content}\n\n{text}" if first.content else text), *messages[1:]]
    return [Message("system", text), *messages]


def tools_from_system(messages: list[Message]) -> tuple[list[Message], bytes | None]:
    """The inverse of `tools_in_system`."""
    if not messages or messages[0].role != "system" or SCHEMAS_HEAD not in messages[0].content:
        return messages, None
    head, _, rest = messages[0].content.rpartition(SCHEMAS_HEAD)
    lines = rest.partition(SCHEMAS_TAIL)[0].split("\n")
    tools = to_json([msgspec.Raw(line.encode()) for line in lines])
    system = head.removesuffix("\n\n")
    return ([Message("system", system)] if system else []) + messages[1:], tools


_THINK = re.compile(r"\A<think>\n(.*?)\n</think>\n\n", re.DOTALL)
_CALL = re.compile(r'\n?<tool_call>\n\{"name": (".*?(?<!\\)"), "arguments": (.*?)\}\n</tool_call>', re.DOTALL)


def unshape(rows: Iterable[JsonObject], shaping: Shaping) -> list[Message]:
    """The messages behind written rows; ids are numbered anew where the shaping wrote calls as text."""
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
            if shaping.reasoning == "think" and (found := _THINK.match(content)):
                reasoning, content = found[1], content[found.end() :]
            if shaping.arguments == "text":
                calls = [
                    Call(f"call_{next(numbers)}", from_json(m[1]), m[2]) for m in _CALL.finditer(content)
                ]
                content = _CALL.sub("", content)
        messages.append(
            Message(row["role"], content, reasoning, calls, row.get("tool_call_id"), row.get("name"), images)
        )
    return messages


def _unshape_call(call: JsonObject) -> Call:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else to_json(arguments).decode()
    return Call(call["id"], call["function"]["name"], text)
