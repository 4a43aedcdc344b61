"""An MCP server with a counter per session, over streamable HTTP here and over stdio when run as a script."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

Message = dict[str, Any]

TOOLS = [
    {"name": "increment", "description": "Count up.",
     "inputSchema": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "die", "inputSchema": {"type": "object"}},
]  # fmt: skip


class Counter:
    """One session."""

    def __init__(self) -> None:
        self.count = 0
        self.is_initialized = False

    def answer(self, message: Message) -> Message | None:
        method, params = message["method"], message.get("params") or {}
        if method == "notifications/initialized":
            self.is_initialized = True
        if "id" not in message:
            return None
        return {"jsonrpc": "2.0", "id": message["id"], **self._outcome(method, params)}

    def _outcome(self, method: str, params: Message) -> Message:
        if method == "initialize":
            about = {"name": "fake", "version": "1"}
            return {
                "result": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": about,
                }
            }
        if not self.is_initialized:
            return {"error": {"code": -32600, "message": "not initialized"}}
        if method == "tools/list":  # two pages
            if not params.get("cursor"):
                return {"result": {"tools": TOOLS[:1], "nextCursor": "second"}}
            return {"result": {"tools": TOOLS[1:]}}
        match params["name"]:
            case "increment":
                self.count += params["arguments"]["by"]
                return {"result": {"content": [{"type": "text", "text": str(self.count)}]}}
            case "fail":
                return {"result": {"content": [{"type": "text", "text": "it failed"}], "isError": True}}
            case "die":
                os._exit(3)
        return {"error": {"code": -32602, "message": f"unknown tool {params['name']}"}}


def make_app(*, streams: bool) -> tuple[Any, dict[str, Counter], list[str]]:
    """The application, its live sessions, and the ids of those that were ended."""
    from aiohttp import web

    sessions: dict[str, Counter] = {}
    ended: list[str] = []

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        assert "text/event-stream" in request.headers["Accept"]
        name = request.headers.get("Mcp-Session-Id") or ""
        if message.get("method") == "initialize":
            name = str(uuid.uuid4())
            sessions[name] = Counter()
        elif name not in sessions:
            return web.json_response({"error": "no such session"}, status=404)
        elif request.headers.get("MCP-Protocol-Version") != "2025-06-18":
            return web.json_response({"error": "wrong protocol version"}, status=400)
        answer = sessions[name].answer(message) if "method" in message else None
        headers = {"Mcp-Session-Id": name}
        if answer is None:
            return web.Response(status=202, headers=headers)
        if not streams:
            return web.json_response(answer, headers=headers)
        stream = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await stream.prepare(request)
        asides = [{"jsonrpc": "2.0", "method": "notifications/progress"}]
        if message["method"] != "initialize":
            asides.append({"jsonrpc": "2.0", "id": 99, "method": "ping"})
        for event in (*asides, answer):
            await stream.write(f": comment\r\nevent: message\r\ndata: {json.dumps(event)}\r\n\r\n".encode())
        return stream

    async def delete(request: web.Request) -> web.Response:
        name = request.headers["Mcp-Session-Id"]
        sessions.pop(name)
        ended.append(name)
        return web.Response(status=200)

    app = web.Application()
    app.router.add_post("/mcp", post)
    app.router.add_delete("/mcp", delete)
    return app, sessions, ended


def main(log: str) -> None:
    """Serve on standard input and output; the process id goes into the log."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")
    print("starting", file=sys.stderr, flush=True)
    counter = Counter()
    for line in sys.stdin:
        answer = counter.answer(json.loads(line))
        if answer is not None:
            print(json.dumps(answer), flush=True)
    if "--stubborn" in sys.argv:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
