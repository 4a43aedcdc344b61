"""Local loop of model turns and tool calls, with Python tools, MCP servers or built-in toolsets."""

from __future__ import annotations

from rollforge.agents.base import AgentOptions, Preparation, ToolTimes, Trajectory
from rollforge.agents.tool_turns import play
from rollforge.agents.tools.loading import load_toolset
from rollforge.agents.tools.toolbox import Toolbox
from rollforge.endpoint import Model
from rollforge.errors import UsageError
from rollforge.records import Task


class ToolLoop:
    """Answers the model's calls with the configured tools."""

    name = "tool_loop"

    def __init__(self, options: AgentOptions) -> None:
        if not options.tools:
            raise UsageError(
                "the agent tool_loop has no tools", hint="give --tools file.py, mcp:URL or mcp-stdio:COMMAND"
            )
        if options.max_turns < 1:
            raise UsageError(
                f"--max-turns must be at least 1, not {options.max_turns}", hint="--max-turns 10"
            )
        self._options = options
        self._toolbox = Toolbox(
            [load_toolset(spec, max_bytes=options.max_response_bytes) for spec in options.tools]
        )
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        await self._toolbox.start()
        return Preparation(
            tools=self._toolbox.schemas,
            fingerprint={"tools": self._toolbox.fingerprint, "max_turns": self._options.max_turns},
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        async with self._toolbox.opened(task) as session:
            transcript, response = await play(
                self._model,
                task.params,
                session,
                sample=sample,
                max_turns=self._options.max_turns,
                tool_timeout_s=self._options.tool_timeout_s,
                max_bytes=self._options.max_response_bytes,
            )
        return Trajectory(
            response=response,
            endpoint=transcript.endpoint,
            api=transcript.api,
            requests=transcript.requests,
            wasted=transcript.wasted,
            tool_times=ToolTimes(
                max(transcript.tool_seconds - session.starting_s, 0.0), session.starting_s, session.starts
            ),
        )

    async def close(self) -> None:
        await self._toolbox.close()
