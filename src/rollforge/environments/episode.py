"""Shared by agents of environments: a transcript that starts with the environment's observation, and the resulting trajectory."""

from __future__ import annotations

import math

from rollforge.agents.base import Trajectory
from rollforge.agents.transcript import Transcript, input_items
from rollforge.endpoint import Model
from rollforge.errors import Failure
from rollforge.json_shapes import ItemJson, ParamsJson, ToolJson, prompt_in
from rollforge.records import Response, Verdict


class Episode:
    """One rollout in an environment that creates the prompt."""

    def __init__(
        self,
        model: Model,
        params: ParamsJson,
        opening: str,
        sample: int,
        *,
        tools: list[ToolJson] | None = None,
    ) -> None:
        self._model, self._sample = model, sample
        self._played = (
            [*input_items(params.get("input")), _said(opening)]
            if opening
            else input_items(params.get("input"))
        )
        if not self._played:
            raise Failure("agent", "permanent", "neither the row nor the environment gives a prompt")
        offered: ParamsJson = {"tools": [*_tools(params), *tools]} if tools else {}
        first_params: ParamsJson = {**params, **offered, "input": self._played}
        self._prompt = prompt_in(first_params)
        self._transcript = Transcript(first_params)

    @property
    def turns(self) -> int:
        """Number of model calls so far."""
        return self._transcript.turns

    @property
    def is_cut(self) -> bool:
        """Whether the last turn ended at a limit."""
        return self._transcript.is_cut

    async def ask(self) -> tuple[str, list[ItemJson]]:
        """Request the model's next turn: its text, and its function calls."""
        answer = await self._model.respond(self._transcript.next_params(), self._sample)
        calls = self._transcript.add_answer(answer)
        return Response(answer.response).last_text, calls

    def hear(self, text: str) -> None:
        """Append the environment's message."""
        self._transcript.add_outputs([_said(text)])

    def answer(self, call: ItemJson, text: str) -> None:
        """Append the result of a function call."""
        self._transcript.add_outputs(
            [{"type": "function_call_output", "call_id": call.get("call_id"), "output": text}]
        )

    def leave_on(self, error: BaseException) -> None:
        """Attach the turns so far to the error that ended the episode."""
        self._transcript.leave_on(error)

    def finish(
        self, verdict: Verdict | None, verifier: str, *, why_unjudged: str = "", incomplete: str | None = None
    ) -> Trajectory:
        """The trajectory of a finished episode."""
        failure = None
        if verdict is None or verdict.reward is None:
            failure = Failure("verifier", "verifier", why_unjudged or "the environment gave no reward")
            verdict = None
        elif not math.isfinite(verdict.reward):
            failure = Failure("verifier", "verifier", f"the reward is {verdict.reward}, which is not finite")
            verdict = None
        return Trajectory(
            response=self._transcript.response(incomplete=incomplete),
            endpoint=self._transcript.endpoint,
            api=self._transcript.api,
            requests=self._transcript.requests,
            wasted=self._transcript.wasted,
            verdict=verdict,
            verdict_failure=failure,
            verifier=verifier,
            own={"played": self._prompt},
        )


def _said(text: str) -> ItemJson:
    return {"role": "user", "content": text, "type": "message"}


def _tools(params: ParamsJson) -> list[ToolJson]:
    tools = params.get("tools")
    return list(tools) if isinstance(tools, list) else []
