"""This module checks `responses_create_params`: allowed keys, input items, tools.

It is stricter than NeMo Gym's own schema where that has a hole: an item with a wrong role, without content, a chat `tool` message
or `{}` is taken there for an `mcp_list_tools` item, and sent as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rollforge.records import JsonObject
from rollforge.registry import did_you_mean
from rollforge.steps.validate.records import Finding

PARAMS = (
    "background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
    "parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "store", "stream", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
)  # fmt: skip
ROLES = ("user", "assistant", "system", "developer")
PARTS = (
    "input_text", "input_image", "input_file", "input_audio", "input_video", "output_text", "refusal",
)  # fmt: skip
HOSTED = frozenset({
    "file_search_call", "computer_call", "computer_call_output", "web_search_call", "image_generation_call", "item_reference",
    "code_interpreter_call", "local_shell_call", "local_shell_call_output", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "custom_tool_call", "custom_tool_call_output",
})  # fmt: skip
_TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def check_params(params: object, path: str) -> Iterator[Finding]:
    """Everything wrong with the parameters of a request."""
    if not isinstance(params, dict):
        yield Finding(path, f"expected an object, got {kind_of(params)}")
        return
    for key in params:
        if key not in PARAMS:
            hint = (
                "put the prompt under `input`"
                if key == "messages"
                else "other fields belong at the top level of the row"
            )
            yield Finding(f"{path}.{key}", f"no such parameter{did_you_mean(key, list(PARAMS))}", hint)
    if params.get("input") is None:
        yield Finding(f"{path}.input", "missing: expected a text or a list of items")
    else:
        yield from check_input(params["input"], f"{path}.input")
    yield from check_tools(params.get("tools"), f"{path}.tools")
    yield from _check_numbers(params, path)
    metadata = params.get("metadata")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        yield Finding(f"{path}.metadata", "expected an object of texts", "write numbers and objects as text")
    if params.get("stream"):
        yield Finding(f"{path}.stream", "streaming is not supported here", "leave it out")


_RANGES: dict[str, tuple[Any, float, float, str]] = {
    "temperature": ((int, float), 0, 2, "a number from 0 to 2"),
    "top_p": ((int, float), 0, 1, "a number from 0 to 1"),
    "max_output_tokens": (int, 1, float("inf"), "a whole number above 0"),
    "max_tool_calls": (int, 0, float("inf"), "a whole number"),
    "top_logprobs": (int, 0, 20, "a whole number from 0 to 20"),
}


def _check_numbers(params: JsonObject, path: str) -> Iterator[Finding]:
    for name, (kind, low, high, expected) in _RANGES.items():
        value: Any = params.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            yield Finding(f"{path}.{name}", f"expected {expected}, got {value!r}")
    calls = params.get("parallel_tool_calls")
    if calls is not None and not isinstance(calls, bool):
        yield Finding(f"{path}.parallel_tool_calls", f"expected true or false, got {calls!r}")


def check_input(value: object, path: str) -> Iterator[Finding]:
    """The prompt: a text or a list of items."""
    if isinstance(value, str):
        if not value.strip():
            yield Finding(path, "the prompt is empty")
        return
    if not isinstance(value, list):
        yield Finding(path, f"expected a text or a list of items, got {kind_of(value)}")
        return
    if not value:
        yield Finding(path, "the prompt is empty: there is no item")
    for number, item in enumerate(value):
        yield from check_item(item, f"{path}[{number}]")
    yield from _check_calls(value, path)


def check_item(item: object, path: str) -> Iterator[Finding]:
    """One item of a prompt or of a response."""
    if not isinstance(item, dict):
        yield Finding(path, f"expected an object, got {kind_of(item)}")
        return
    if not item:
        yield Finding(path, "the item is empty", "NeMo Gym would send it as an mcp_list_tools item")
        return
    kind = item.get("type", "message")
    if kind == "message":
        yield from _check_message(item, path)
    elif kind == "function_call":
        yield from _need(item, path, {"call_id": str, "name": str, "arguments": str})
    elif kind == "function_call_output":
        yield from _need(item, path, {"call_id": str})
        if item.get("output") is None:
            yield Finding(f"{path}.output", "missing: expected a text")
    elif kind == "reasoning":
        if not isinstance(item.get("summary", []), list):
            yield Finding(f"{path}.summary", "expected a list of summary texts")
    elif kind not in HOSTED:
        known = ["message", "function_call", "function_call_output", "reasoning", *HOSTED]
        near = did_you_mean(str(kind), known)
        yield Finding(
            f"{path}.type", f"no such item type: {kind!r}{near}", "NeMo Gym would take it for another item"
        )


def _check_message(item: JsonObject, path: str) -> Iterator[Finding]:
    role = item.get("role")
    if role == "tool":
        yield Finding(
            f"{path}.role", "a chat `tool` message is no Responses item",
            'write {"type": "function_call_output", "call_id": …, "output": …}',
        )  # fmt: skip
    elif role not in ROLES:
        told = "missing" if role is None else f"got {role!r}"
        near = did_you_mean(str(role), list(ROLES)) if role is not None else ""
        yield Finding(f"{path}.role", f"expected one of {', '.join(ROLES)}, {told}{near}", _HOLE)
    if item.get("tool_calls"):
        yield Finding(
            f"{path}.tool_calls",
            "chat tool calls are no part of a Responses message",
            "write each as a function_call item",
        )
    content = item.get("content")
    if content is None:
        if not item.get("tool_calls"):
            yield Finding(f"{path}.content", "missing: expected a text or a list of parts", _HOLE)
    elif isinstance(content, list):
        yield from _check_parts(content, f"{path}.content")
    elif not isinstance(content, str):
        yield Finding(f"{path}.content", f"expected a text or a list of parts, got {kind_of(content)}", _HOLE)
    elif not content.strip() and role == "user":
        yield Finding(f"{path}.content", "the message is empty", level="warning")


_HOLE = "NeMo Gym's schema lets this pass as an mcp_list_tools item"
_CHAT_PART = "that is a chat part; here it is input_text or input_image, and NeMo Gym would take the item for an mcp_list_tools one"


def _check_parts(parts: list[object], path: str) -> Iterator[Finding]:
    if not parts:
        yield Finding(path, "the content is empty: there is no part")
    for number, part in enumerate(parts):
        place = f"{path}[{number}]"
        if not isinstance(part, dict):
            yield Finding(
                place, f"expected a part, got {kind_of(part)}", 'write {"type": "input_text", "text": …}'
            )
            continue
        kind = part.get("type")
        if kind not in PARTS:
            told = f"no such part type: {kind!r}{did_you_mean(str(kind), list(PARTS))}"
            hint = _CHAT_PART if kind in ("text", "image_url") else _HOLE
            yield Finding(
                f"{place}.type", told if kind is not None else "missing: expected a part type", hint
            )
        elif kind in ("input_text", "output_text") and not isinstance(part.get("text"), str):
            yield Finding(f"{place}.text", f"expected a text, got {kind_of(part.get('text'))}")


def _check_calls(items: list[object], path: str) -> Iterator[Finding]:
    """Every tool output answers a call that stands before it."""
    called: set[object] = set()
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call":
            called.add(item.get("call_id"))
        elif item.get("type") == "function_call_output" and item.get("call_id") not in called:
            place = f"{path}[{number}].call_id"
            yield Finding(
                place, f"no function_call before it has call_id {item.get('call_id')!r}", level="warning"
            )


def _need(item: JsonObject, path: str, fields: dict[str, type]) -> Iterator[Finding]:
    for name, kind in fields.items():
        if not isinstance(item.get(name), kind):
            told = "missing" if item.get(name) is None else f"got {kind_of(item[name])}"
            hint = "arguments are a text that holds JSON" if name == "arguments" else ""
            yield Finding(f"{path}.{name}", f"expected a text, {told}", hint)


def check_tools(tools: object, path: str) -> Iterator[Finding]:
    """Tool definitions: shape, names, and whether their parameters are a schema that can be met."""
    if tools is None:
        return
    if not isinstance(tools, list):
        yield Finding(path, f"expected a list of tools, got {kind_of(tools)}")
        return
    names: set[str] = set()
    for number, tool in enumerate(tools):
        place = f"{path}[{number}]"
        if not isinstance(tool, dict):
            yield Finding(place, f"expected a tool, got {kind_of(tool)}")
            continue
        if tool.get("type") != "function":
            if tool.get("type") is None:
                yield Finding(f"{place}.type", "missing: expected `function`")
            continue
        if isinstance(tool.get("function"), dict):
            yield Finding(
                f"{place}.function",
                "a chat tool; Responses tools are flat",
                "move name, parameters and strict up one level",
            )
            continue
        yield from _check_tool(tool, place)
        name = tool.get("name")
        if name in names:
            yield Finding(f"{place}.name", f"a second tool is called {name!r}")
        names.add(str(name))


def _check_tool(tool: JsonObject, path: str) -> Iterator[Finding]:
    if not isinstance(tool.get("name"), str) or not _TOOL_NAME.match(tool["name"]):
        yield Finding(
            f"{path}.name", f"expected letters, digits, - or _, at most 64, got {tool.get('name')!r}"
        )
    if "strict" not in tool:
        yield Finding(f"{path}.strict", "missing: NeMo Gym requires it", "add strict: true or false")
    if "parameters" not in tool:
        yield Finding(
            f"{path}.parameters",
            "missing: expected a JSON schema",
            'for none: {"type": "object", "properties": {}}',
        )
        return
    schema = tool["parameters"]
    if schema is not None:
        yield from _check_schema(schema, f"{path}.parameters", is_top=True)


_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


def _check_schema(schema: object, path: str, *, is_top: bool = False) -> Iterator[Finding]:
    if not isinstance(schema, dict):
        yield Finding(path, f"expected a JSON schema, got {kind_of(schema)}")
        return
    kind = schema.get("type")
    if is_top and kind != "object":
        yield Finding(f"{path}.type", f"expected 'object', got {kind!r}")
    for one in kind if isinstance(kind, list) else [kind]:
        if one is not None and one not in _TYPES:
            yield Finding(f"{path}.type", f"no such JSON type: {one!r}{did_you_mean(str(one), list(_TYPES))}")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        yield Finding(f"{path}.properties", f"expected an object, got {kind_of(properties)}")
        return
    required = schema.get("required", [])
    if not isinstance(required, list):
        yield Finding(f"{path}.required", f"expected a list of names, got {kind_of(required)}")
        required = []
    for name in required:
        if name not in properties:
            yield Finding(
                f"{path}.required",
                f"{name!r} is required, but is no property{did_you_mean(str(name), list(properties))}",
            )
    for name, inner in properties.items():
        yield from _check_schema(inner, f"{path}.properties.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _check_schema(schema["items"], f"{path}.items")


def kind_of(value: object) -> str:
    """A JSON value's kind in words."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)
