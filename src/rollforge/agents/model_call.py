"""One model call per rollout. Tool calls of the model are recorded, not answered."""

from __future__ import annotations

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.endpoint import Model
from rollforge.errors import UsageError
from rollforge.records import Task


class ModelCall:
    """Sends the task's parameters unchanged and keeps the answer."""

    name = "model_call"

    def __init__(self, options: AgentOptions) -> None:
        if options.tools:
            raise UsageError("the agent model_call answers no tool calls", hint="--agent tool_loop does")
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        return Preparation()

    async def start(self, model: Model) -> None:
        self._model = model

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        answer = await self._model.respond(task.params, sample)
        return Trajectory(
            response=answer.response,
            endpoint=answer.endpoint,
            api=answer.api,
            requests=answer.requests,
            wasted=answer.wasted,
        )

    async def close(self) -> None:
        """Nothing to release."""
