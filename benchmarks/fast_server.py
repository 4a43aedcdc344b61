"""A loopback server that answers every POST with the same 6 KB Responses object, as fast as Python can.

It parses no JSON, so that what is measured is the client. Run as a program it prints its port and serves until stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import sys

ANSWER_CHARACTERS = 5200


def response_body() -> bytes:
    """A Responses object of about 6 KB."""
    text = ("The quick brown fox jumps over the lazy dog. " * 200)[:ANSWER_CHARACTERS] + "\\boxed{42}"
    return json.dumps(
        {
            "id": "resp_0",
            "object": "response",
            "created_at": 1700000000,
            "model": "fast",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "output": [
                {
                    "type": "message",
                    "id": "msg_0",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}],
                }
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 500,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 1300,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 1800,
            },
        }
    ).encode()


class Answering(asyncio.Protocol):
    """One connection: waits for a whole request, answers, keeps alive."""

    reply = b""

    def __init__(self) -> None:
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            del self._data[: end + 4 + length]
            self._transport.write(self.reply)  # type: ignore[attr-defined]


async def serve() -> None:
    body = response_body()
    Answering.reply = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
