"""Remote rollouts: every row is sent to a NeMo Gym agent or environment server's /run, which answers with response and verdict.

Agent servers take rows. Environment servers take typed episodes, `{episode_id, task: {task_id, task_input}}`, and answer with a result
or a failure; a typed task is always sent so, and a plain row when the server asks for an `episode_id`.
"""

from __future__ import annotations

import uuid

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.agents.nemo_gym.gym_json import EpisodeAnswerJson, EpisodeJson
from rollforge.agents.nemo_gym.gym_rows import (
    attempt_failure,
    episode_of,
    refuse_unkept,
    result_of_episode,
    task_row,
    verdict_of,
)
from rollforge.agents.nemo_gym.gym_server import GymAnswer, GymServer, Session, read_object
from rollforge.agents.nemo_gym.gym_servers import GymServers
from rollforge.endpoint import Model
from rollforge.errors import Failure
from rollforge.json_shapes import RowJson
from rollforge.records import ROLLOUT_KEY, TASK_KEY, Task, Verdict
from rollforge.tasks import is_typed_task


class GymAgent:
    """Sends the row and keeps the answer. The server calls its own model with its own settings."""

    name = "gym_agent"

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._servers = GymServers("agent", options)

    async def prepare(self) -> Preparation:
        return await self._servers.prepare(
            asks_model=False,
            judges=self._options.gym_verify,
            fingerprint={"gym_verify": self._options.gym_verify},
        )

    async def start(self, model: Model) -> None:
        """Do nothing: the server calls its own model."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        server = self._servers.find(task)
        result = await self._result(server, task, sample)
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

    async def _result(self, server: GymServer, task: Task, sample: int) -> RowJson:
        """The server's row, in either of the two protocols."""
        if not (server.is_typed or is_typed_task(task)):
            body: RowJson = {**task_row(task), TASK_KEY: task.index, ROLLOUT_KEY: sample}
            answer = await self._post(server, body)
            if not (answer.status == 422 and b'"episode_id"' in answer.body):
                return read_object(answer, "/run", "agent", RowJson)
            server.is_typed = True
        rollout = f"{task.index}-{sample}-{uuid.uuid4().hex[:8]}"
        answer = await self._post(server, episode_of(task, rollout))
        return result_of_episode(read_object(answer, "/run", "agent", EpisodeAnswerJson))

    async def _post(self, server: GymServer, body: RowJson | EpisodeJson) -> GymAnswer:
        return await server.post(
            "/run", body, session=Session(), boundary="agent", timeout_s=self._options.rollout_deadline_s
        )

    def _verdict(self, result: RowJson, task: Task) -> tuple[Verdict | None, Failure | None]:
        if not self._options.gym_verify:
            return None, None
        try:
            return verdict_of(result, task), None
        except Failure as failure:
            return None, failure
