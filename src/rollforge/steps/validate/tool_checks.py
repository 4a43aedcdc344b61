"""Checks tool definitions: form, names, and whether their parameters are a usable schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rollforge.registry import did_you_mean
from rollforge.steps.validate.json_schemas import check_schema
from rollforge.steps.validate.validation_records import RowFault, kind_of, shown

HOSTED_TOOLS = (
    "apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search", "image_generation",
    "local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell", "tool_search",
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
)  # fmt: skip
"""Tool types that run on the model's server, whose definitions are not checked."""
_TOOL = 'a tool is {"type": "function", "name": …, "parameters": …, "strict": true}'
_TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def check_tools(tools: object, path: str) -> Iterator[RowFault]:
    """Check tool definitions: form, names, and whether their parameter schemas can be satisfied."""
    if tools is None:
        return
    if not isinstance(tools, list):
        yield RowFault(path, f"expected a list of tools, got {kind_of(tools)}", "for none: []")
        return
    names: set[str] = set()
    for number, tool in enumerate(tools):
        tool_path = f"{path}[{number}]"
        if not isinstance(tool, dict):
            yield RowFault(tool_path, f"expected a tool, got {kind_of(tool)}", _TOOL)
            continue
        kind = tool.get("type")
        if kind is None:
            yield RowFault(f"{tool_path}.type", "missing: expected `function`", _TOOL)
            continue
        if kind != "function":
            if kind not in HOSTED_TOOLS:
                near = did_you_mean(str(kind), ["function", *HOSTED_TOOLS])
                hint = "a tool of your own is a `function`"
                yield RowFault(f"{tool_path}.type", f"no such tool type: {shown(kind)}{near}", hint)
            continue
        if isinstance(tool.get("function"), dict):
            yield RowFault(
                f"{tool_path}.function",
                "a chat tool; Responses tools are flat",
                "move name, parameters and strict up one level",
            )
            continue
        yield from _check_name(tool.get("name"), f"{tool_path}.name", names)
        yield from _check_tool(tool, tool_path)


def check_chat_tools(tools: list[object], path: str) -> Iterator[RowFault]:
    """Check tool definitions of a dataset: name and parameters are under `function`, or at the top level as in LLaMA-Factory."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        tool_path = f"{path}[{number}]"
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            yield RowFault(tool_path, f"expected a tool, got {shown(tool)}", _CHAT_TOOL)
            continue
        if function is not tool:
            tool_path += ".function"
        elif "type" in tool:
            text = "a flat tool of the Responses API; most chat templates render it wrongly"
            yield RowFault(tool_path, text, _CHAT_TOOL, "warning")
        yield from _check_name(function.get("name"), f"{tool_path}.name", names)
        if function.get("parameters") is not None:
            yield from check_schema(function["parameters"], f"{tool_path}.parameters")


_CHAT_TOOL = 'a chat template reads {"type": "function", "function": {"name": …, "parameters": …}}'


def _check_name(name: object, path: str, names: set[str]) -> Iterator[RowFault]:
    """Check that a name is callable and new among `names`, and add it."""
    if not isinstance(name, str) or not _TOOL_NAME.match(name):
        yield RowFault(
            path, f"expected letters, digits, - or _, at most 64, got {shown(name)}", "like get_weather"
        )
    if isinstance(name, str):
        if name in names:
            yield RowFault(
                path, f"a second tool is called {name!r}", "leave one out, or give it another name"
            )
        names.add(name)


def _check_tool(tool: Mapping[str, object], path: str) -> Iterator[RowFault]:
    if "strict" not in tool:
        yield RowFault(f"{path}.strict", "missing: NeMo Gym requires it", "add strict: true or false")
    elif not isinstance(tool["strict"], bool | None):
        yield RowFault(
            f"{path}.strict",
            f"expected true or false, got {shown(tool['strict'])}",
            "write it without quotes",
        )
    if not isinstance(tool.get("description"), str | None):
        text = f"expected a text, got {kind_of(tool['description'])}"
        yield RowFault(f"{path}.description", text, "say in a sentence what the tool does")
    if "parameters" not in tool:
        yield RowFault(
            f"{path}.parameters",
            "missing: expected a JSON schema",
            'for none: {"type": "object", "properties": {}}',
        )
        return
    schema = tool["parameters"]
    if schema is not None:
        yield from check_schema(schema, f"{path}.parameters", is_top=True)


def check_tool_choice(choice: object, tools: object, path: str) -> Iterator[RowFault]:
    """Check a tool choice: a word, or an object that names an offered tool."""
    if choice is None or choice in ("auto", "none"):
        return
    if choice == "required":
        if not tools:
            yield RowFault(
                path, "a tool is required, but none is offered", "offer one under `tools`", "warning"
            )
        return
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        hint = 'to name a tool: {"type": "function", "name": "…"}'
        yield RowFault(
            path, f"expected auto, none, required or an object with a type, got {shown(choice)}", hint
        )
        return
    if isinstance(choice.get("function"), dict):
        yield RowFault(f"{path}.function", "a chat choice; here it is flat", "move the name up one level")
        return
    if choice["type"] == "function":
        yield from _check_offered(choice.get("name"), tools, f"{path}.name")
    allowed = choice.get("tools") if choice["type"] == "allowed_tools" else None
    for number, tool in enumerate(allowed if isinstance(allowed, list) else []):
        if isinstance(tool, dict) and tool.get("type") == "function":
            yield from _check_offered(tool.get("name"), tools, f"{path}.tools[{number}].name")


def _check_offered(name: object, tools: object, path: str) -> Iterator[RowFault]:
    offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = [tool["name"] for tool in offered if isinstance(tool.get("name"), str)]
    if not isinstance(name, str):
        yield RowFault(path, f"expected the name of a tool, got {shown(name)}", "name one of `tools`")
    elif name not in names:
        hint = f"offered: {', '.join(names[:6]) or 'none'}"
        yield RowFault(path, f"no tool is called {name!r}{did_you_mean(name, names)}", hint)
