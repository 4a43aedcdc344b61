"""This module checks tool definitions: their shape, their names, and whether their parameters are a schema that can be met."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollforge.records import JsonObject
from rollforge.registry import did_you_mean
from rollforge.steps.validate.records import Finding, kind_of

_TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


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
        if isinstance(name, str):
            if name in names:
                yield Finding(f"{place}.name", f"a second tool is called {name!r}")
            names.add(name)


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
        if not isinstance(name, str):
            yield Finding(f"{path}.required", f"expected names of properties, got {kind_of(name)}")
        elif name not in properties:
            yield Finding(
                f"{path}.required",
                f"{name!r} is required, but is no property{did_you_mean(name, list(properties))}",
            )
    for name, inner in properties.items():
        yield from _check_schema(inner, f"{path}.properties.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _check_schema(schema["items"], f"{path}.items")
