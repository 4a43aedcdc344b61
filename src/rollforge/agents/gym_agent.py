"""Rollouts made elsewhere: every row is handed to a NeMo Gym agent server's /run, which answers with response and verdict."""

from __future__ import annotations

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.agents.gym_rows import attempt_failure, refuse_unkept, task_row, verdict_of
from rollforge.agents.gym_server import Session, read_object
from rollforge.agents.gym_servers import GymServers
from rollforge.endpoint import Model
from rollforge.errors import Failure
from rollforge.records import ROLLOUT_KEY, TASK_KEY, JsonObject, Task, Verdict


class GymAgent:
    """Sends the row, keeps what comes back. The agent server asks its own model with its own settings."""

    name = "gym_agent"

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._servers = GymServers("agent", options)

    async def prepare(self) -> Preparation:
        return Preparation(
            needs=await self._servers.open(),
            asks_model=False,
            judges=self._options.gym_verify,
            fingerprint={"gym_verify": self._options.gym_verify},
        )

    async def start(self, model: Model) -> None:
        """The agent server asks its own model."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        server = self._servers.find(task)
        answer = await server.post(
            "/run",
            {**task_row(task), TASK_KEY: task.index, ROLLOUT_KEY: sample},
            session=Session(),
            boundary="agent",
            timeout_s=self._options.rollout_deadline_s,
        )
        result = read_object(answer, "/run", "agent")
        refuse_unkept(result)
        failure = attempt_failure(result)
        if failure is not None:
            raise failure
        response = result.get("response")
        if not isinstance(response, dict):
            raise Failure("agent", "agent", "/run answered with no response")
        verdict, problem = self._verdict(result, task)
        return Trajectory(
            response=response,
            endpoint=server.url,
            is_remote=True,
            verdict=verdict,
            verdict_failure=problem,
            verifier=self.name if self._options.gym_verify else None,
        )

    async def close(self) -> None:
        await self._servers.close()

    def _verdict(self, result: JsonObject, task: Task) -> tuple[Verdict | None, Failure | None]:
        if not self._options.gym_verify:
            return None, None
        try:
            return verdict_of(result, task), None
        except Failure as failure:
            return None, failure
