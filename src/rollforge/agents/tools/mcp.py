"""Tools of an MCP server, through the official `mcp` package, over streamable HTTP or a process's standard streams.

Every rollout gets its own session (HTTP) or process (stdio), because a server keeps its state there; `-shared` in the spec means
one for the whole run. Only tools are used: no prompts, resources or sampling.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

try:
    import mcp.types as types
    from mcp import Client, MCPError
    from mcp.client import Transport
    from pydantic import BaseModel
    from pydantic import ValidationError as BadResult
except ImportError as error:  # pragma: no cover  (the message is tested in a process without the package)
    from rollforge.errors import UsageError as _UsageError

    raise _UsageError(
        f"MCP tools need a package that is not installed ({error.name})",
        hint="pip install 'rollforge[mcp]'",
    ) from error

from typing import cast

from rollforge import __version__
from rollforge.agents.tools.base import ToolError, ToolSession, function_tool
from rollforge.agents.tools.mcp_http import HttpConnection
from rollforge.agents.tools.mcp_stdio import StdioConnection
from rollforge.endpoint import MAX_RESPONSE_BYTES
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import SchemaJson, ToolJson
from rollforge.records import Task, to_json
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.text_safety.outgoing import cut

OPEN_S = 60.0
"""How long a server may take to start and shake hands."""
MOST_PAGES, MOST_TOOLS = 1_000, 10_000
"""Limits on a tool list: a faulty server can repeat the same page for ever."""
END_S = 8.0
"""How long a session may take to end before its asyncio task is cancelled."""
Mode = Literal["legacy", "auto"]
R = TypeVar("R", bound=BaseModel)

# The package logs what we report ourselves; without any handler Python would print that to stderr.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Connection(Protocol):
    """A transport to an MCP server."""

    @property
    def reason(self) -> str:
        """Why the connection is unusable; empty if no reason is known."""

    def connect(self) -> Transport:
        """Open the connection; leaving the context closes it."""


class McpTools:
    """The tools of one MCP server."""

    def __init__(
        self,
        name: str,
        kind: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        *,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.name = name
        self._max_bytes = max_bytes
        self.schemas: list[ToolJson] = []
        self._is_shared = kind.endswith("-shared")
        self._is_stdio = kind.startswith("mcp-stdio")
        self._target = target
        self._headers = headers
        self._mode: Mode = "legacy"
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
        """Digest of name and schemas; the server's source is not available."""
        return hashlib.sha256(to_json([self.name, self.schemas])).hexdigest()[:16]

    async def start(self) -> None:
        try:
            session = await self.first_session()
        except (Failure, ToolError) as error:
            raise UsageError(
                f"--tools {self.name}: {error}", hint="is it an MCP server, and does it run?"
            ) from error
        try:
            self.schemas = await session.list_tools()
        except (Failure, ToolError) as error:
            raise UsageError(
                f"--tools {self.name}: it does not list its tools: {error}",
                hint="start the server by hand and look at what it prints",
            ) from error
        finally:
            if self._is_shared:
                self._shared = session
            else:
                await session.end()
        if not self.schemas:
            raise UsageError(
                f"--tools {self.name}: the server has no tools",
                hint="start the server by hand and look at its tools/list",
            )

    async def open(self, task: Task) -> ToolSession:
        if not self._is_shared:
            return await self._new_session()
        async with self._opening:
            if self._shared is None or self._shared.is_broken:
                if self._shared is not None:
                    await self._shared.end()
                self._shared = await self._new_session()
            return self._shared

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.end()

    async def first_session(self) -> McpSession:
        """Open a session with the handshake of protocol versions before 2026-07-28, else with the newer one."""
        try:
            return await self._new_session()
        except ToolError:
            self._mode = "auto"
            return await self._new_session()

    async def _new_session(self) -> McpSession:
        way: Connection = (
            StdioConnection(self._target, max_bytes=self._max_bytes)
            if self._is_stdio
            else HttpConnection(self._target, headers=self._headers, max_bytes=self._max_bytes)
        )
        session = McpSession(way, is_shared=self._is_shared)
        try:
            async with OnErrorAwait(lambda _: session.end()), asyncio.timeout(OPEN_S):
                await session.open(self._mode)
        except TimeoutError:
            raise Failure("tool", "tool", f"{self.name} did not greet within {OPEN_S:g} s") from None
        return session


async def open_mcp(
    url: str, headers: Mapping[str, str], *, max_bytes: int = MAX_RESPONSE_BYTES
) -> McpSession:
    """A separate session with the server at a URL; the caller closes it."""
    return await McpTools(f"mcp:{url}", "mcp", url, headers, max_bytes=max_bytes).first_session()


class McpSession:
    """One session with a server.

    A dedicated asyncio task opens and closes the connection: the package requires one task for both, while a rollout calls from
    several. When that task ends, every waiting call fails with its reason.
    """

    is_parallel = True

    def __init__(self, way: Connection, *, is_shared: bool) -> None:
        self.is_broken = False
        self._way = way
        self._is_shared = is_shared
        self._client: Client | None = None
        self._is_open = asyncio.Event()
        self._shall_end = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self, mode: Mode) -> None:
        """Connect and shake hands; raises `Failure` when the server is not there, `ToolError` when it refuses."""
        self._owner = asyncio.create_task(self._own(mode), name="mcp-session")
        opened = asyncio.create_task(self._is_open.wait())
        try:
            await asyncio.wait({self._owner, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if not self._is_open.is_set():
            raise self._explained(self._error)

    async def _own(self, mode: Mode) -> None:
        """Keep the connection open until the session is to end."""
        about = types.Implementation(name="rollforge", version=__version__)
        try:
            async with Client(self._way.connect(), mode=mode, client_info=about, cache=None) as client:
                self._client = client
                self._is_open.set()
                await self._shall_end.wait()
        finally:
            self.is_broken = True

    @property
    def _error(self) -> BaseException | None:
        """Why the connection ended; None while it lasts, and after an orderly end."""
        if self._owner is None or not self._owner.done() or self._owner.cancelled():
            return None
        error = self._owner.exception()
        return error and _single(error)

    async def list_tools(self) -> list[ToolJson]:
        """Schemas of all tools, page by page."""
        schemas: list[ToolJson] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                async with asyncio.timeout(OPEN_S):
                    page = await self._ask(types.ListToolsRequest(params=params), types.ListToolsResult)
            except TimeoutError:
                raise Failure("tool", "tool", f"no list of tools within {OPEN_S:g} s") from None
            schemas += [
                function_tool(
                    tool.name, tool.description or tool.title or "", cast("SchemaJson", tool.input_schema)
                )
                for tool in page.tools
            ]
            if len(schemas) > MOST_TOOLS:
                break
            cursor = page.next_cursor
            if not cursor:
                return schemas
        raise Failure("tool", "tool", f"its list of tools does not end after {len(schemas):,}")

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        params = types.CallToolRequestParams(name=name, arguments=dict(arguments))
        result = await self._ask(types.CallToolRequest(params=params), types.CallToolResult)
        text = _text_of(result)
        if result.is_error:
            raise ToolError("tool-error", text)
        return text

    async def _ask(self, request: types.ClientRequest, result_type: type[R]) -> R:
        """The result of a request; fails if the connection ends first."""
        if self._client is None or self._owner is None or self._owner.done():
            raise self._explained(self._error)
        asking = asyncio.ensure_future(self._client.session.send_request(request, result_type))
        try:
            await asyncio.wait({asking, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        if asking.cancelled():
            raise self._explained(self._error)
        error = asking.exception()
        if error is not None:
            raise self._explained(error) from error
        return asking.result()

    async def close(self) -> None:
        """End the session with its rollout, unless it is shared."""
        if not self._is_shared:
            await self.end()

    async def end(self) -> None:
        """End the session; a server that is already gone is no error."""
        self._shall_end.set()
        if self._owner is not None:
            await asyncio.wait({self._owner}, timeout=END_S)
            if not self._owner.done():
                self._owner.cancel()
            await asyncio.gather(self._owner, return_exceptions=True)

    def _explained(self, error: BaseException | None) -> Failure | ToolError:
        """Map an error: a server's error answer becomes text for the model, a lost server fails the rollout."""
        reason = self._way.reason
        if (
            isinstance(error, MCPError)
            and error.code != types.CONNECTION_CLOSED
            and not reason.startswith("http")
        ):
            return ToolError("mcp-error", to_json({"error": error.message}).decode())
        if isinstance(error, BadResult):
            text = f"the server's answer does not follow the protocol: {str(error).splitlines()[0]}"
            return ToolError("mcp-error", to_json({"error": text}).decode())
        self.is_broken = True
        if not reason:
            reason = f"{type(error).__name__}: {error}" if error else "the connection is closed"
        return Failure("tool", "tool", cut(f"the MCP server: {reason}", 2000))


def _single(error: BaseException) -> BaseException:
    """The first leaf of nested exception groups: it is the cause, and the other errors follow from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text_of(result: types.CallToolResult) -> str:
    """The result as text for the model: its text parts; other parts are only named."""
    parts = [_part_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return "\n".join(parts)


def _part_text(part: Any) -> str:
    match part.type:
        case "text":
            return str(part.text)
        case "resource" if getattr(part.resource, "text", None) is not None:
            return str(part.resource.text)
        case "resource_link":
            return str(part.uri)
        case kind:
            return f"[{kind}: {getattr(part, 'mime_type', None) or 'unknown type'}]"
