"""Protocols for sources of tools: a toolset lives as long as a run and opens one session per rollout.

A session holds one rollout's state. It opens when the rollout first calls one of the set's tools, and closes however the rollout
ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rollforge.json_shapes import SchemaJson, ToolJson
from rollforge.records import Task


def function_tool(name: str, description: str, parameters: SchemaJson | None) -> ToolJson:
    """A tool as the Responses API offers it."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters or {"type": "object", "properties": {}},
        "strict": False,  # some servers refuse optional parameters under strict
    }


class ToolError(Exception):
    """A call failed, and the model gets the message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        """Error class recorded beside the output: the exception's name, `bad-arguments`, `unknown-tool` or `timeout`."""
        self.text = text
        """What the model reads."""


class ToolSession(Protocol):
    """The tools as one rollout sees them."""

    @property
    def is_parallel(self) -> bool:
        """Whether calls of one turn may run concurrently."""

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Call a tool and return its output; raises `ToolError` for the model, or `Failure` when the server is gone."""

    async def close(self) -> None:
        """Release the rollout's state."""


class Toolset(Protocol):
    """A source of tools."""

    @property
    def name(self) -> str:
        """The spec that the user gave."""

    @property
    def schemas(self) -> list[ToolJson]:
        """One Responses-style function tool each; available after `start`."""

    @property
    def fingerprint(self) -> str:
        """Digest of the tools' schemas and, if readable, of their source."""

    async def start(self) -> None:
        """Prepare the tools; raises `UsageError` when they are not available."""

    async def open(self, task: Task) -> ToolSession:
        """A session for one rollout of `task`."""

    async def close(self) -> None:
        """Release everything `start` took."""
