"""A loopback server that answers every POST with the same 6 KB object, as fast as Python can.

`/v1/chat/completions` gets a chat completion, every other POST a Responses object with the same text, any GET the list of models.
It parses no JSON, so that what is measured is the client. Run as a program it prints its port and serves until stdin closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

ANSWER_CHARACTERS = 5200


def answer_text(characters: int) -> str:
    return ("The quick brown fox jumps over the lazy dog. " * (characters // 45 + 1))[
        :characters
    ] + "\\boxed{42}"


def response_body(characters: int = ANSWER_CHARACTERS) -> bytes:
    """A Responses object; of about 6 KB by default."""
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
                    "content": [
                        {
                            "type": "output_text",
                            "text": answer_text(characters),
                            "annotations": [],
                            "logprobs": None,
                        }
                    ],
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


def chat_body(characters: int = ANSWER_CHARACTERS) -> bytes:
    """A chat completion with the same text and usage."""
    return json.dumps(
        {
            "id": "chatcmpl_0",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "fast",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "logprobs": None,
                    "message": {"role": "assistant", "content": answer_text(characters), "refusal": None},
                }
            ],
            "usage": {
                "prompt_tokens": 500,
                "completion_tokens": 1300,
                "total_tokens": 1800,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }
    ).encode()


def models_body() -> bytes:
    model = {"id": "fast", "object": "model", "created": 1700000000, "owned_by": "benchmark"}
    return json.dumps({"object": "list", "data": [model]}).encode()


def reply(body: bytes) -> bytes:
    """The whole answer, headers included, made once."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


class Answering(asyncio.Protocol):
    """One connection: waits for a whole request, answers, keeps alive."""

    response = chat = models = b""

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
            self._transport.write(self._answer_to(head))  # type: ignore[attr-defined]
            if b"connection: close" in head:  # some clients read until the end
                self._transport.close()

    def _answer_to(self, head: bytes) -> bytes:
        if head.startswith(b"get "):
            return self.models
        return self.chat if b"/chat/completions " in head[:200] else self.response


async def serve(characters: int) -> None:
    Answering.response = reply(response_body(characters))
    Answering.chat = reply(chat_body(characters))
    Answering.models = reply(models_body())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--characters", type=int, default=ANSWER_CHARACTERS, help="of the answer's text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args().characters))
