"""A scripted judge behind a real HTTP endpoint on the loopback, run in a thread of its own."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Script = Callable[[dict[str, Any]], str | tuple[int, str]]
"""From the request to the reply's text, or to a status and a body."""


class JudgeServer:
    """What was asked, and where to ask."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self._script = script

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["authorization"] = request.headers.get("Authorization")
        self.requests.append(body)
        reply = self._script(body)
        if isinstance(reply, tuple):
            return web.Response(status=reply[0], text=reply[1])
        usage = {"prompt_tokens": 11, "completion_tokens": 7}
        return web.json_response(
            {"choices": [{"message": {"role": "assistant", "content": reply}}], "usage": usage}
        )


@contextmanager
def judge_server(script: Script) -> Iterator[JudgeServer]:
    server, ready, loop = JudgeServer(script), threading.Event(), asyncio.new_event_loop()

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"http://127.0.0.1:{port}/v1"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def nonce_of(request: dict[str, Any]) -> str:
    """The nonce the judge was told to put on its fence."""
    text = "\n".join(message["content"] for message in request["messages"])
    found = re.search(r"verdict-([0-9a-f]+)", text)
    assert found is not None
    return found.group(1)


def in_fence(label: str) -> Script:
    """A judge that obeys: the label in the fence."""
    return lambda request: f"Because.\n\n```verdict-{nonce_of(request)}\n{label}\n```"
