"""This module offers the tools of an MCP server, over streamable HTTP or over a process's standard input and output.

Every rollout gets a session (HTTP) or a process (stdio) of its own, since a server keeps its state there; `-shared` in the spec means
one for the whole run. Only tools are used: no prompts, resources or sampling. A server that understands only the handshake-free
protocol of 2026-07-28 is not supported.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any, Protocol

from rollforge import __version__
from rollforge.agents.tools.base import ToolError, ToolSession
from rollforge.agents.tools.mcp_http import HttpConnection
from rollforge.agents.tools.mcp_messages import RpcError
from rollforge.agents.tools.mcp_stdio import StdioConnection
from rollforge.errors import Failure, UsageError
from rollforge.records import JsonObject, Task, to_json

PROTOCOL = "2025-11-25"
"""The newest protocol we speak; a server answers with the one it wants to speak."""
OPEN_S = 60.0
"""How long a server may take to start and greet."""


class Connection(Protocol):
    """A way to an MCP server. Both members raise `Failure` of boundary `tool` when the way is gone."""

    async def open(self) -> None:
        """Connect, or start the process."""

    def agree(self, protocol: str) -> None:
        """The protocol version that both sides speak from now on."""

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        """The result; raises `RpcError` when the server answers with an error."""

    async def notify(self, method: str) -> None:
        """Say something that has no answer."""

    async def close(self) -> None:
        """End the session or the process."""


class McpTools:
    """The tools of one MCP server."""

    def __init__(self, name: str, kind: str, target: str) -> None:
        self.name = name
        self.schemas: list[JsonObject] = []
        self._is_shared = kind.endswith("-shared")
        self._is_stdio = kind.startswith("mcp-stdio")
        self._target = target
        self._shared: McpSession | None = None
        self._opening = asyncio.Lock()
        if not target:
            raise UsageError(
                f"--tools {name} names no server", hint="write mcp:http://host:port/mcp or mcp-stdio:COMMAND"
            )
        if not self._is_stdio and not target.startswith(("http://", "https://")):
            raise UsageError(
                f"--tools {name}: {target!r} is no URL", hint="a command is written mcp-stdio:COMMAND"
            )

    @property
    def fingerprint(self) -> str:
        """The server's source cannot be read, so the schemas stand for it."""
        return hashlib.sha256(to_json([self.name, self.schemas])).hexdigest()[:16]

    async def start(self) -> None:
        try:
            session = await self._new_session()
        except (Failure, RpcError) as error:
            raise UsageError(
                f"--tools {self.name}: {error}", hint="is it an MCP server, and does it run?"
            ) from error
        try:
            self.schemas = [_schema(tool) for tool in await session.list_tools()]
        except (Failure, RpcError) as error:
            raise UsageError(f"--tools {self.name}: it does not list its tools: {error}") from error
        finally:
            if self._is_shared:
                self._shared = session
            else:
                await session.end()
        if not self.schemas:
            raise UsageError(f"--tools {self.name}: the server has no tools")

    async def open(self, task: Task) -> ToolSession:
        if not self._is_shared:
            return await self._new_session()
        async with self._opening:
            if self._shared is None or self._shared.is_broken:
                if self._shared is not None:
                    await self._shared.end()
                self._shared = await self._new_session(is_shared=True)
            return self._shared

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.end()

    async def _new_session(self, *, is_shared: bool | None = None) -> McpSession:
        way: Connection = StdioConnection(self._target) if self._is_stdio else HttpConnection(self._target)
        session = McpSession(way, is_shared=self._is_shared if is_shared is None else is_shared)
        try:
            async with asyncio.timeout(OPEN_S):
                await session.greet()
        except TimeoutError:
            await session.end()
            raise Failure("tool", "tool", f"{self.name} did not greet within {OPEN_S:g} s") from None
        except BaseException:
            await session.end()
            raise
        return session


class McpSession:
    """A greeted connection, as a rollout uses it."""

    is_parallel = True

    def __init__(self, way: Connection, *, is_shared: bool) -> None:
        self.is_broken = False
        self._way = way
        self._is_shared = is_shared

    async def greet(self) -> None:
        """Connect and agree on a protocol."""
        await self._way.open()
        about = {"name": "rollforge", "version": __version__}
        greeting = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        answer = await self._way.request("initialize", greeting)
        self._way.agree(str(answer.get("protocolVersion") or PROTOCOL))
        await self._way.notify("notifications/initialized")

    async def list_tools(self) -> list[JsonObject]:
        """All tools, page by page."""
        tools: list[JsonObject] = []
        cursor: Any = None
        while True:
            page = await self._way.request("tools/list", {"cursor": cursor} if cursor else {})
            tools += [tool for tool in page.get("tools") or [] if isinstance(tool, dict)]
            cursor = page.get("nextCursor")
            if not cursor:
                return tools

    async def call(self, name: str, arguments: JsonObject) -> str:
        try:
            result = await self._way.request("tools/call", {"name": name, "arguments": arguments})
        except RpcError as error:
            raise ToolError("mcp-error", to_json({"error": str(error)}).decode()) from error
        except Failure:
            self.is_broken = True
            raise
        text = _text_of(result)
        if result.get("isError"):
            raise ToolError("tool-error", text)
        return text

    async def close(self) -> None:
        """Called when a rollout ends; a shared session outlives it."""
        if not self._is_shared:
            await self.end()

    async def end(self) -> None:
        """End it for good; a server that is gone already is no problem any more."""
        with contextlib.suppress(Failure, RpcError):
            await self._way.close()


def _schema(tool: JsonObject) -> JsonObject:
    return {
        "type": "function",
        "name": str(tool.get("name")),
        "description": tool.get("description") or tool.get("title") or "",
        "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}},
        "strict": False,
    }


def _text_of(result: JsonObject) -> str:
    """The result as the model reads it: its text parts; a part that is no text is named, not shown."""
    parts = [_part_text(part) for part in result.get("content") or [] if isinstance(part, dict)]
    if not parts and result.get("structuredContent") is not None:
        return to_json(result["structuredContent"]).decode()
    return "\n".join(parts)


def _part_text(part: JsonObject) -> str:
    match part.get("type"):
        case "text":
            return str(part.get("text") or "")
        case "resource" if isinstance(part.get("resource"), dict) and "text" in part["resource"]:
            return str(part["resource"]["text"])
        case "resource_link":
            return str(part.get("uri") or "")
        case kind:
            return f"[{kind}: {part.get('mimeType') or 'unknown type'}]"
