"""One model call per rollout. Tool calls the model makes are recorded, not answered."""

from __future__ import annotations

from rollforge.agents.base import Trajectory
from rollforge.endpoint import Model
from rollforge.records import Task


class ModelCall:
    """Sends the task's params as they are and keeps what comes back."""

    name = "model_call"

    def __init__(self, model: Model) -> None:
        self._model = model

    async def start(self) -> None:
        """Nothing to make ready."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        answer = await self._model.respond(task.params, sample)
        return Trajectory(response=answer.response, endpoint=answer.endpoint, requests=answer.requests)

    async def close(self) -> None:
        """Nothing to release."""
