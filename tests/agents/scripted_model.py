"""A model server that says what a test tells it to, turn by turn, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

Row = dict[str, Any]
Turn = list[Row] | Row | int
"""Output items, a whole response, or a status to fail with."""


def call(name: str, arguments: Any, call_id: str = "c1") -> Row:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": text,
    }


def message(text: str) -> Row:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


class ScriptedModel:
    """The n-th turn of every rollout is the n-th of the script; the last one repeats."""

    def __init__(self, *turns: Turn | Callable[[Row], Turn]) -> None:
        self.turns = turns
        self.asked: list[Row] = []
        self.app = web.Application(client_max_size=2**26)
        self.app.router.add_post("/v1/responses", self._respond)

    async def _respond(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        items = body["input"] if isinstance(body["input"], list) else []
        place = self._turns_taken(items)
        turn = self.turns[min(place, len(self.turns) - 1)]
        said = turn(body) if callable(turn) else turn
        if isinstance(said, int):
            return web.json_response({"error": {"message": f"scripted {said}"}}, status=said)
        response = said if isinstance(said, dict) else {"output": said}
        return web.json_response(
            {
                "id": f"resp_{place}", "object": "response", "created_at": 1, "model": "scripted", "status": "completed",
                "incomplete_details": None, "error": None,
                "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                          "input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1}},
                **response,
            }
        )  # fmt: skip

    @staticmethod
    def _turns_taken(items: list[Row]) -> int:
        """Runs of function calls in the history: one per turn already taken."""
        kinds = [item.get("type") for item in items]
        return sum(
            kind == "function_call" and (place == 0 or kinds[place - 1] != "function_call")
            for place, kind in enumerate(kinds)
        )
