"""Joins several toolsets into one, and opens and closes the sessions of each rollout."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from rollforge.agents.tools.base import ToolError, ToolSession, Toolset
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import ToolJson
from rollforge.records import Task, to_json
from rollforge.registry import did_you_mean

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""How long one session may take to release its resources."""


class Toolbox:
    """The tools of a run."""

    def __init__(self, toolsets: Sequence[Toolset]) -> None:
        self._toolsets = list(toolsets)
        self._set_by_tool: dict[str, Toolset] = {}
        self.schemas: list[ToolJson] = []

    async def start(self) -> None:
        """Start every source; duplicate tool names are refused."""
        for toolset in self._toolsets:
            await toolset.start()
            for schema in toolset.schemas:
                name = str(schema["name"])
                other = self._set_by_tool.get(name)
                if other is not None:
                    raise UsageError(
                        f"two tools are called {name!r}: one of {other.name}, one of {toolset.name}",
                        hint="rename one, or leave one toolset out",
                    )
                self._set_by_tool[name] = toolset
                self.schemas.append(schema)

    @property
    def fingerprint(self) -> str:
        """Digest over all sources, in order."""
        return hashlib.sha256(to_json([toolset.fingerprint for toolset in self._toolsets])).hexdigest()[:16]

    @asynccontextmanager
    async def opened(self, task: Task) -> AsyncIterator[RolloutSessions]:
        """The tools for one rollout; their state is released however the rollout ends."""
        sessions = RolloutSessions(self._set_by_tool, task)
        try:
            yield sessions
        finally:
            await sessions.close()

    async def close(self) -> None:
        for toolset in self._toolsets:
            await toolset.close()


class RolloutSessions:
    """One rollout's sessions, each opened at the first call of one of its tools."""

    def __init__(self, set_by_tool: dict[str, Toolset], task: Task) -> None:
        self._set_by_tool = set_by_tool
        self._task = task
        self._session_by_set: dict[str, ToolSession] = {}
        self.starting_s = 0.0
        """Seconds that opening sessions took: an MCP server starts, or shakes hands."""
        self.starts = 0
        self._opening = asyncio.Lock()
        self._one_by_one = {
            toolset.name: asyncio.Lock() for toolset in {id(t): t for t in set_by_tool.values()}.values()
        }

    is_parallel = True

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        toolset = self._set_by_tool.get(name)
        if toolset is None:
            tool_names = sorted(self._set_by_tool)
            text = (
                f"There is no tool {name!r}{did_you_mean(name, tool_names)}. Tools: {', '.join(tool_names)}"
            )
            raise ToolError("unknown-tool", to_json({"error": text}).decode())
        session = await self._session(toolset)
        if session.is_parallel:
            return await session.call(name, arguments)
        async with self._one_by_one[toolset.name]:
            return await session.call(name, arguments)

    async def _session(self, toolset: Toolset) -> ToolSession:
        async with self._opening:
            session = self._session_by_set.get(toolset.name)
            if session is None:
                started = time.monotonic()
                try:
                    session = await toolset.open(self._task)
                except Failure:
                    raise
                except Exception as error:  # the boundary to the tools' set-up
                    message = f"{toolset.name} could not be set up: {type(error).__name__}: {error}"
                    raise Failure("tool", "tool", message) from error
                self._session_by_set[toolset.name] = session
                self.starting_s += time.monotonic() - started
                self.starts += 1
            return session

    async def close(self) -> None:
        """Release all sessions; one that fails is logged and does not stop the others."""
        for name, session in self._session_by_set.items():
            try:
                async with asyncio.timeout(CLOSE_S):
                    await session.close()
            except Exception as error:  # noqa: BLE001  (the boundary to the tools' tear-down)
                logger.warning("%s did not release its state: %s: %s", name, type(error).__name__, error)
