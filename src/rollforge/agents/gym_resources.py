"""A loop of model turns here, against a running NeMo Gym resources server: its session, its tools, its verdict."""

from __future__ import annotations

import time
from urllib.parse import quote

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.agents.gym_rows import refuse_unkept, task_row, verdict_of, verify_body
from rollforge.agents.gym_server import GymServer, Session, read_object, refuse_errors
from rollforge.agents.gym_servers import GymServers
from rollforge.agents.loop import play
from rollforge.agents.tools.base import ToolError
from rollforge.agents.transcript import tool_names
from rollforge.endpoint import Model
from rollforge.endpoint.client import Outage
from rollforge.errors import Failure
from rollforge.records import JsonObject, Task, Verdict, to_json


class GymResources:
    """Seeds a session per rollout, lets the model call the server's tools, and asks it for the verdict."""

    name = "gym_resources"

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._servers = GymServers("resources", options)
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        return Preparation(
            needs=await self._servers.open(),
            judges=self._options.gym_verify,
            fingerprint={"max_turns": self._options.max_turns, "gym_verify": self._options.gym_verify},
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        server = self._servers.find(task)
        session = Session()
        await self._seed(server, session, task)
        transcript, response = await play(
            self._model,
            task.params,
            _GymTools(server, session, task, self._options.tool_timeout_s),
            sample=sample,
            max_turns=self._options.max_turns,
            tool_timeout_s=None,  # each request has its own; waiting for a server to come back is not the tool's time
        )
        verdict, problem = None, None
        asked = time.monotonic()
        if self._options.gym_verify:
            try:
                verdict = await self._verify(server, session, task, response)
            except Outage as outage:
                # What was generated is kept; the next rollout meets the outage and stops the run.
                problem = Failure("verifier", "verifier", outage.message)
            except Failure as failure:
                problem = failure
        return Trajectory(
            response=response,
            endpoint=transcript.endpoint,
            api=transcript.api,
            requests=transcript.requests,
            verdict=verdict,
            verdict_failure=problem,
            verifier=self.name if self._options.gym_verify else None,
            verify_seconds=time.monotonic() - asked if self._options.gym_verify else None,
        )

    async def close(self) -> None:
        await self._servers.close()

    async def _seed(self, server: GymServer, session: Session, task: Task) -> None:
        answer = await server.post(
            "/seed_session",
            task_row(task),
            session=session,
            boundary="agent",
            timeout_s=self._options.rollout_deadline_s,
        )
        refuse_errors(answer, "/seed_session", "agent")

    async def _verify(self, server: GymServer, session: Session, task: Task, response: JsonObject) -> Verdict:
        answer = await server.post(
            "/verify",
            verify_body(task, response),
            session=session,
            boundary="verifier",
            timeout_s=self._options.verify_timeout_s,
        )
        result = read_object(answer, "/verify", "verifier")
        refuse_unkept(result)
        return verdict_of(result, task)


class _GymTools:
    """The tools a row offers, at its resources server. Calls of one turn go one by one, as NeMo Gym's own agent sends them."""

    is_parallel = False

    def __init__(self, server: GymServer, session: Session, task: Task, timeout_s: float) -> None:
        self._server = server
        self._session = session
        self._timeout_s = timeout_s
        self._offered = tool_names(task.params)

    async def call(self, name: str, arguments: JsonObject) -> str:
        # Only what the row offers: the server's other paths (/verify, /seed_session) are not the model's to call.
        if name not in self._offered:
            raise ToolError("unknown-tool", to_json({"error": f"There is no tool {name!r}"}).decode())
        try:
            answer = await self._server.post(
                f"/{quote(name, safe='')}",
                arguments,
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
        """A resources server has no way to end a session."""
