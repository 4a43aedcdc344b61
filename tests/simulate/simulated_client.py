"""A raw HTTP client: it shows what really came over the wire, faults included."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from rollforge.records import from_json, to_json
from rollforge.simulate import SimulatedServer


class Raw(NamedTuple):
    """What a client saw of one reply."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    was_reset: bool = False

    @property
    def json(self) -> Any:
        return from_json(self.body)

    @property
    def is_short(self) -> bool:
        """Whether fewer bytes came than were promised."""
        return len(self.body) < int(self.headers.get("content-length", 0))


async def send(
    server: SimulatedServer,
    path: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    method: str | None = None,
) -> Raw:
    """One request on a connection of its own, read to its end."""
    data = b"" if body is None else body if isinstance(body, bytes) else to_json(body)
    lines = {
        "Host": f"127.0.0.1:{server.port}",
        "Content-Length": str(len(data)),
        "Connection": "close",
        **(headers or {}),
    }
    head = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    received = b""
    was_reset = False
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(head.encode() + data)
        while piece := await reader.read(65536):
            received += piece
    except ConnectionError:
        was_reset = True
    finally:  # also when a test gives up waiting
        writer.close()
    return parse(received, was_reset)


def parse(received: bytes, was_reset: bool = False) -> Raw:
    """The reply in the bytes, as far as it came."""
    if b"\r\n\r\n" not in received:
        return Raw(None, {}, b"", was_reset)
    top, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return Raw(int(first.split()[1]), {name.lower(): value for name, value in pairs}, rest, was_reset)


async def ask(server: SimulatedServer, text: str, sample: int | None = 0, **params: Any) -> Raw:
    """One question over the Responses API."""
    headers = {} if sample is None else {"X-Rollforge-Sample": str(sample)}
    return await send(
        server, "/v1/responses", {"model": "simulated", "input": text, **params}, headers=headers
    )


async def chat(server: SimulatedServer, text: str, sample: int | None = 0, **params: Any) -> Raw:
    """One question over Chat Completions."""
    headers = {} if sample is None else {"X-Rollforge-Sample": str(sample)}
    body = {"model": "simulated", "messages": [{"role": "user", "content": text}], **params}
    return await send(server, "/v1/chat/completions", body, headers=headers)


def answer_text(raw: Raw) -> str:
    """The answer's text, whichever API it came by."""
    value = raw.json
    if "choices" in value:
        return value["choices"][0]["message"]["content"]
    return "".join(part.get("text", "") for item in value["output"] for part in item.get("content") or [])
