"""An OpenEnv server for tests: guess a number, over the WebSocket contract."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import WSMsgType, web

ACTION = {
    "type": "object",
    "title": "Guess",
    "properties": {"number": {"type": "integer"}, "metadata": {"type": "object"}},
    "required": ["number"],
}


class FakeOpenEnv:
    """The number is the seed of the reset; a right guess earns 1 and ends the episode."""

    def __init__(
        self, *, sessions: int = 100, is_silent: bool = False, says_bool: bool = False, hangs: bool = False
    ) -> None:
        self.sessions, self.is_silent, self.says_bool, self.hangs = sessions, is_silent, says_bool, hangs
        self.open, self.refused, self.most = 0, 0, 0
        self.app = web.Application()
        self.app.router.add_get("/schema", self._schema)
        self.app.router.add_get("/ws", self._session)

    async def _schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": {}, "state": {}})

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self.sessions:
            self.refused += 1
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            return socket
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            number = 0
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                asked: dict[str, Any] = json.loads(message.data)
                if asked["type"] == "reset":
                    number = int(asked["data"].get("seed", 0))
                    await self._see(socket, "Guess a number.", None, False)
                elif not isinstance(asked["data"].get("number"), int):
                    error = {
                        "message": "Invalid message",
                        "code": "VALIDATION_ERROR",
                        "errors": ["number: missing"],
                    }
                    await socket.send_json({"type": "error", "data": error})
                else:
                    is_right = asked["data"]["number"] == number
                    if self.hangs:
                        continue
                    reward = None if self.is_silent else is_right if self.says_bool else float(is_right)
                    await self._see(socket, "right" if is_right else "wrong", reward, is_right)
        finally:
            self.open -= 1
        return socket

    async def _see(self, socket: web.WebSocketResponse, hint: str, reward: float | None, done: bool) -> None:
        data = {"observation": {"hint": hint, "metadata": {}}, "reward": reward, "done": done}
        await socket.send_json({"type": "observation", "data": data})
