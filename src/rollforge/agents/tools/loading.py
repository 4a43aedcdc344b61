"""Resolves a `--tools` spec to a toolset."""

from __future__ import annotations

import inspect
from typing import Any

from rollforge.agents.tools import TOOLSETS
from rollforge.agents.tools.base import Toolset
from rollforge.agents.tools.functions import ClassTools, FunctionTools
from rollforge.endpoint import MAX_RESPONSE_BYTES
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean, load_module, load_target

NOT_TOOLS = frozenset({"verify", "verify_group", "main"})
"""Names of functions that can share a file with tools but are not tools."""


def load_toolset(spec: Any, *, max_bytes: int = MAX_RESPONSE_BYTES) -> Toolset:
    """The tools behind a spec.

    Args:
        spec: `file.py` (its list `TOOLS`, else its class `Tools`, else its public functions), `file.py:name` or `module:name` (a
            function, a class, a list of functions), `mcp:URL`, `mcp-stdio:COMMAND`, a ready set's name, or such an object itself.
        max_bytes: most bytes of one message of an MCP server.
    """
    if not isinstance(spec, str):
        return _from_object(tools_name(spec), spec)
    kind, _, rest = spec.partition(":")
    if kind in ("mcp", "mcp-stdio", "mcp-shared", "mcp-stdio-shared"):
        from rollforge.agents.tools.mcp import McpTools

        return McpTools(spec, kind, rest, max_bytes=max_bytes)
    if spec.endswith(".py"):
        return _from_object(spec, _tools_of_file(spec))
    if rest:
        return _from_object(spec, load_target(spec))
    toolset_names = TOOLSETS.names()
    if spec not in toolset_names:
        raise UsageError(
            f"there are no tools {spec!r}{did_you_mean(spec, toolset_names)}",
            hint=f"write file.py, file.py:name, mcp:URL, mcp-stdio:COMMAND, or a ready set: {', '.join(toolset_names)}",
        )
    return _from_object(spec, TOOLSETS.load(spec))


def tools_name(spec: Any) -> str:
    """The name of a tool source in files and messages."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, list | tuple):
        return ", ".join(tools_name(item) for item in spec)
    return str(getattr(spec, "__qualname__", type(spec).__name__))


def _tools_of_file(path: str) -> Any:
    module = load_module(path)
    listed = getattr(module, "TOOLS", None)
    if listed is not None:
        return listed
    if inspect.isclass(getattr(module, "Tools", None)):
        return module.Tools
    functions = [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and name not in NOT_TOOLS
    ]
    if not functions:
        raise UsageError(
            f"{path} has no tools",
            hint="write public functions, a class Tools, or a list TOOLS = [function, …]",
        )
    return functions


def _from_object(name: str, target: Any) -> Toolset:
    if inspect.isclass(target):
        return ClassTools(name, target)
    if isinstance(target, list | tuple):
        if not all(callable(item) for item in target):
            raise UsageError(
                f"{name} holds something that is no function", hint="the list may hold functions only"
            )
        return FunctionTools(name, list(target))
    if callable(target):
        return FunctionTools(name, [target])
    raise UsageError(
        f"{name} is a {type(target).__name__}; tools are functions, a class, or a list of functions",
        hint="name a function, a class or a list: --tools file.py:name",
    )
