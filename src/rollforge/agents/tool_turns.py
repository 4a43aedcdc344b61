"""The tool loop: ask the model, answer its calls, ask again, until it makes no more calls.

A rollout that reaches the turn limit is incomplete for the reason `max_turns`, and judged like any other. A model that fails
half-way raises a `Failure` that carries the turns so far.
"""

from __future__ import annotations

import asyncio
import time

from rollforge.agents.tool_calls import answer_calls
from rollforge.agents.tools.base import ToolSession
from rollforge.agents.transcript import Transcript
from rollforge.endpoint import MAX_RESPONSE_BYTES, Model
from rollforge.errors import Failure
from rollforge.json_shapes import ParamsJson, ResponseJson


async def play(
    model: Model,
    params: ParamsJson,
    session: ToolSession,
    *,
    sample: int,
    max_turns: int,
    tool_timeout_s: float | None,
    max_bytes: int = MAX_RESPONSE_BYTES,
) -> tuple[Transcript, ResponseJson]:
    """Play one rollout to its end: the turns, and the response they make together."""
    transcript = Transcript(params)
    try:
        while True:
            calls = transcript.add_answer(await model.respond(transcript.next_params(), sample))
            if not calls or transcript.is_cut:
                return transcript, transcript.response()
            # The last turn's calls are answered too: they may be what changes the world that a verifier looks at.
            started = time.monotonic()
            transcript.add_outputs(await answer_calls(calls, session, tool_timeout_s, max_bytes))
            transcript.tool_seconds += time.monotonic() - started
            if transcript.turns >= max_turns:
                return transcript, transcript.response(incomplete="max_turns")
    except (Failure, asyncio.CancelledError) as error:
        transcript.leave_on(error)
        raise
