"""Episodes of NeMo Gym's gymnasium servers: `/reset`, then pairs of a model turn and a `/step` until the environment is done.

The environment makes the prompt (its observation), answers tool calls in `info.tool_outputs`, and gives a reward per step; the
rollout's reward is their sum. A rollout at the turn limit is truncated, not failed.
"""

from __future__ import annotations

import asyncio

import msgspec

from rollforge.agents.nemo_gym.gym_rows import complete_response, task_row
from rollforge.agents.nemo_gym.gym_server import GymServer, Session, read_object
from rollforge.agents.transcript import Transcript, input_items
from rollforge.endpoint import Model
from rollforge.errors import Failure
from rollforge.json_shapes import ItemJson, ParamsJson, ResponseJson, RowJson
from rollforge.records import Task, Verdict
from rollforge.runtime.typed_decoding import convert


class GymnasiumEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """A finished episode."""

    response: ResponseJson
    verdict: Verdict
    endpoint: str
    requests: int
    wasted: tuple[object, ...] = ()


class _ToolOutput(msgspec.Struct):
    call_id: str
    output: str


class _Info(msgspec.Struct):
    tool_outputs: list[_ToolOutput] = []
    supports_explicit_close: bool = False


class _Step(msgspec.Struct):
    """The answer of `/reset` and `/step`."""

    observation: str | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: _Info = msgspec.field(default_factory=_Info)


async def play_episode(
    model: Model,
    server: GymServer,
    session: Session,
    task: Task,
    *,
    sample: int,
    max_turns: int,
    timeout_s: float,
) -> GymnasiumEpisode:
    """Play one episode to its end."""
    row = task_row(task)
    reset = await _ask(server, session, "/reset", row, timeout_s)
    try:
        return await _play(model, server, session, task, row, reset, sample, max_turns, timeout_s)
    finally:
        if reset.info.supports_explicit_close:
            await server.close_session(session, {}, path="/close")


async def _play(
    model: Model,
    server: GymServer,
    session: Session,
    task: Task,
    row: RowJson,
    reset: _Step,
    sample: int,
    max_turns: int,
    timeout_s: float,
) -> GymnasiumEpisode:
    params: ParamsJson = {**task.params, "input": [*input_items(task.params.get("input")), *_observed(reset)]}
    if not params["input"]:
        raise Failure("agent", "permanent", "neither the row nor /reset gives a prompt")
    transcript = Transcript(params)
    reward, step = 0.0, reset
    try:
        while True:
            answer = await model.respond(transcript.next_params(), sample)
            transcript.add_answer(answer)
            body: RowJson = {**row, "response": complete_response(answer.response, task.params)}
            step = await _ask(server, session, "/step", body, timeout_s)
            reward += step.reward
            if step.terminated or step.truncated:
                break
            outputs: list[ItemJson] = [
                {"type": "function_call_output", "call_id": output.call_id, "output": output.output}
                for output in step.info.tool_outputs
            ]
            transcript.add_outputs([*outputs, *_observed(step)])
            if transcript.turns >= max_turns:
                break
    except (Failure, asyncio.CancelledError) as error:
        transcript.leave_on(error)
        raise
    is_done = step.terminated or step.truncated
    numbers: dict[str, bool | int | float] = {
        "terminated": step.terminated,
        "truncated": step.truncated or not is_done,
    }
    return GymnasiumEpisode(
        response=transcript.response(incomplete=None if is_done else "max_turns"),
        verdict=Verdict(reward=reward, numbers=numbers),
        endpoint=transcript.endpoint,
        requests=transcript.requests,
        wasted=transcript.wasted,
    )


def _observed(step: _Step) -> list[ItemJson]:
    if not step.observation:
        return []
    return [{"role": "user", "content": step.observation, "type": "message"}]


async def _ask(server: GymServer, session: Session, path: str, body: RowJson, timeout_s: float) -> _Step:
    answer = await server.post(path, body, session=session, boundary="agent", timeout_s=timeout_s)
    value = read_object(answer, path, "agent", RowJson)
    try:
        return convert(value, _Step)
    except msgspec.ValidationError as error:
        raise Failure("agent", "agent", f"{path}: {error}") from error
