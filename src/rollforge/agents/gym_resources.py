"""Local loop of model turns against a running NeMo Gym resources server, which provides session, tools and verdict.

Tools are the paths that a row offers, or those of the MCP server that `/seed_session` announces. A server with `/reset` and `/step`
(gymnasium) is recognised at the first row.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

from rollforge.agents.base import AgentOptions, Preparation, ToolTimes, Trajectory
from rollforge.agents.nemo_gym.gym_json import ClosingJson, SeededJson
from rollforge.agents.nemo_gym.gym_rows import refuse_unkept, task_row, verdict_of, verify_body
from rollforge.agents.nemo_gym.gym_server import GymServer, Session, read_object, refuse_errors
from rollforge.agents.nemo_gym.gym_servers import GymServers
from rollforge.agents.nemo_gym.gymnasium import play_episode
from rollforge.agents.tool_turns import play
from rollforge.agents.tools.base import ToolError, ToolSession
from rollforge.agents.transcript import tool_names
from rollforge.endpoint import Model
from rollforge.endpoint.client import Outage
from rollforge.errors import Failure
from rollforge.json_shapes import ParamsJson, ResponseJson, RowJson, ToolJson
from rollforge.records import Task, Verdict, to_json
from rollforge.tasks import is_empty_prompt
from rollforge.text_safety.outgoing import cut


class GymResources:
    """Seeds a session per rollout, lets the model call the server's tools, and asks it for the verdict."""

    name = "gym_resources"

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._servers = GymServers("resources", options)
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        return await self._servers.prepare(
            judges=self._options.gym_verify,
            fingerprint={"max_turns": self._options.max_turns, "gym_verify": self._options.gym_verify},
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        server = self._servers.find(task)
        session = Session()
        closing = _closing_body(task, sample)
        try:
            seeded = None if server.is_gymnasium else await self._seed(server, session, task)
            if seeded is None:
                return await self._play_gymnasium(self._model, server, session, task, sample)
            return await self._play(self._model, server, session, task, sample, seeded)
        finally:
            await server.close_session(session, closing)

    async def _play(
        self,
        model: Model,
        server: GymServer,
        session: Session,
        task: Task,
        sample: int,
        seeded: SeededJson,
    ) -> Trajectory:
        if is_empty_prompt(task.params.get("input")):
            raise Failure("agent", "permanent", "the row has no prompt, and the resources server makes none")
        tools = _PathTools(server, session, task, self._options.tool_timeout_s)
        async with _with_mcp(server, seeded, tools, self._options.max_response_bytes) as (
            session_tools,
            offered,
        ):
            params: ParamsJson = {**task.params, "tools": [*(task.params.get("tools") or []), *offered]}
            transcript, response = await play(
                model,
                params if offered else task.params,
                session_tools,
                sample=sample,
                max_turns=self._options.max_turns,
                # A path's requests have their own limit; waiting for a server to come back is not the tool's time.
                tool_timeout_s=self._options.tool_timeout_s if offered else None,
                max_bytes=self._options.max_response_bytes,
            )
        verdict, problem = None, None
        verify_started = time.monotonic()
        if self._options.gym_verify:
            try:
                verdict = await self._verify(server, session, task, response)
            except Outage as outage:
                # The response is kept; the next rollout meets the outage and stops the run.
                problem = Failure("verifier", "verifier", outage.message)
            except Failure as failure:
                if failure.boundary == "agent":
                    raise  # the session is lost: no verdict of this attempt would be right
                problem = failure
        return Trajectory(
            response=response,
            endpoint=transcript.endpoint,
            api=transcript.api,
            requests=transcript.requests,
            wasted=transcript.wasted,
            tool_times=ToolTimes(transcript.tool_seconds),
            verdict=verdict,
            verdict_failure=problem,
            verifier=self.name if self._options.gym_verify else None,
            verify_seconds=time.monotonic() - verify_started if self._options.gym_verify else None,
        )

    async def _play_gymnasium(
        self, model: Model, server: GymServer, session: Session, task: Task, sample: int
    ) -> Trajectory:
        episode = await play_episode(
            model,
            server,
            session,
            task,
            sample=sample,
            max_turns=self._options.max_turns,
            timeout_s=self._options.rollout_deadline_s,
        )
        return Trajectory(
            response=episode.response,
            endpoint=episode.endpoint,
            requests=episode.requests,
            wasted=episode.wasted,
            verdict=episode.verdict if self._options.gym_verify else None,
            verifier=self.name if self._options.gym_verify else None,
        )

    async def close(self) -> None:
        await self._servers.close()

    async def _seed(self, server: GymServer, session: Session, task: Task) -> SeededJson | None:
        """Send `/seed_session` and return the answer; None for a gymnasium server, which has no such path."""
        answer = await server.post(
            "/seed_session",
            task_row(task),
            session=session,
            boundary="agent",
            timeout_s=self._options.rollout_deadline_s,
        )
        if answer.status == 404 and await server.has_path("/step"):
            server.is_gymnasium = True
            return None
        refuse_errors(answer, "/seed_session", "agent")
        return (
            read_object(answer, "/seed_session", "agent", SeededJson)
            if answer.body.strip() not in (b"", b"null")
            else {}
        )

    async def _verify(
        self, server: GymServer, session: Session, task: Task, response: ResponseJson
    ) -> Verdict:
        answer = await server.post(
            "/verify",
            verify_body(task, response),
            session=session,
            boundary="verifier",
            timeout_s=self._options.verify_timeout_s,
        )
        result = read_object(answer, "/verify", "verifier", RowJson)
        refuse_unkept(result)
        return verdict_of(result, task)


def _closing_body(task: Task, sample: int) -> ClosingJson:
    """The request that closes the session, with its names; servers that identify it by cookie ignore them."""
    rollout = f"{task.index}-{sample}-{uuid.uuid4().hex[:8]}"
    return {"resources_session_id": rollout, "episode_id": {"rollout_id": rollout, "attempt": 0}}


@asynccontextmanager
async def _with_mcp(
    server: GymServer, seeded: SeededJson, tools: _PathTools, max_bytes: int
) -> AsyncIterator[tuple[ToolSession, list[ToolJson]]]:
    """The session's tools and their schemas: the row's, plus those of an MCP server if the seed announced one."""
    announced = seeded.get("mcp") or seeded.get("resources_tools")
    if not isinstance(announced, dict):
        yield tools, []
        return
    from rollforge.agents.tools.mcp import open_mcp

    headers = announced.get("headers")
    path = str(announced.get("url_path") or "/mcp")
    if not path.startswith("/"):  # "@host/mcp" would lead to another host
        raise Failure("agent", "agent", f"/seed_session: the MCP server's path {cut(path, 200)!r} is none")
    url = server.url + path
    session = await open_mcp(url, headers if isinstance(headers, dict) else {}, max_bytes=max_bytes)
    try:
        schemas = await session.list_tools()
        offered = [schema for schema in schemas if schema["name"] not in tools.offered]
        yield _JoinedTools(tools, session, frozenset(str(schema["name"]) for schema in offered)), offered
    finally:
        await session.end()


class _PathTools:
    """Tools that a row offers, served by its resources server. The calls of one turn run in sequence, as in NeMo Gym's own agent."""

    is_parallel = False

    def __init__(self, server: GymServer, session: Session, task: Task, timeout_s: float) -> None:
        self.offered = tool_names(task.params)
        self._server = server
        self._session = session
        self._timeout_s = timeout_s

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        # Only what the row offers: the server's other paths (/verify, /seed_session) are not the model's to call.
        if name not in self.offered:
            raise ToolError("unknown-tool", to_json({"error": f"There is no tool {name!r}"}).decode())
        try:
            answer = await self._server.post(
                f"/{quote(name, safe='')}",
                dict(arguments),
                session=self._session,
                boundary="tool",
                timeout_s=self._timeout_s,
            )
        except Failure as failure:
            if failure.kind != "timeout":
                raise
            raise ToolError("timeout", to_json({"error": failure.message}).decode()) from failure
        if answer.status != 200:
            raise ToolError(f"HTTP {answer.status}", answer.text)
        return answer.text

    async def close(self) -> None:
        """Do nothing: the agent closes the session when the rollout ends."""


class _JoinedTools:
    """The row's own tools and those of an MCP server, in one session."""

    is_parallel = False

    def __init__(self, own: _PathTools, mcp: ToolSession, mcp_names: frozenset[str]) -> None:
        self._own = own
        self._mcp = mcp
        self._mcp_names = mcp_names

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        session: ToolSession = self._mcp if name in self._mcp_names else self._own
        return await session.call(name, arguments)

    async def close(self) -> None:
        """Do nothing: both sessions are closed by their owners."""
