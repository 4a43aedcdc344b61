"""This module reaches an MCP server over streamable HTTP: one POST per message, answered with JSON or with a stream of events."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import aiohttp

from rollforge.agents.tools.mcp_messages import gone, parse, reply_to, result_of, to_notification, to_request
from rollforge.endpoint.faults import message_of
from rollforge.records import JsonObject


class HttpConnection:
    """One session with the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http: aiohttp.ClientSession | None = None
        self._numbers = itertools.count(1)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30), read_bufsize=2**20
        )

    def agree(self, protocol: str) -> None:
        self._headers["MCP-Protocol-Version"] = protocol

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        number = next(self._numbers)
        try:
            async with self._session().post(
                self._url, data=to_request(number, method, params), headers=self._headers
            ) as answer:
                await self._check(answer)
                if answer.headers.get("Mcp-Session-Id"):
                    self._headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
                if answer.content_type != "text/event-stream":
                    return result_of(parse(await answer.read()))
                async for event in _events(answer):
                    message = parse(event)
                    if message.get("id") == number and "method" not in message:
                        return result_of(message)
                    await self._react(message)
        except (aiohttp.ClientError, OSError) as error:
            raise gone(f"{self._url}: {type(error).__name__}: {error}") from error
        raise gone(f"{self._url} ended its answer to {method} without a result")

    async def notify(self, method: str) -> None:
        await self._post(to_notification(method))

    async def close(self) -> None:
        """End the session at the server, where it has one."""
        http, self._http = self._http, None
        if http is None:
            return
        try:
            if "Mcp-Session-Id" in self._headers:
                limit = aiohttp.ClientTimeout(total=5)
                async with http.delete(self._url, headers=self._headers, timeout=limit):
                    pass  # 405 means that sessions end by themselves there
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        finally:
            await http.close()

    async def _react(self, message: JsonObject) -> None:
        reply = reply_to(message)
        if reply is not None:
            await self._post(reply)

    async def _post(self, data: bytes) -> None:
        try:
            async with self._session().post(self._url, data=data, headers=self._headers) as answer:
                await self._check(answer)
        except (aiohttp.ClientError, OSError) as error:
            raise gone(f"{self._url}: {type(error).__name__}: {error}") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise gone("the connection is closed")
        return self._http

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status >= 400:
            raise gone(f"{self._url}: HTTP {answer.status}: {message_of(await answer.read())}")


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    lines: list[str] = []
    pending = b""
    async for chunk in answer.content.iter_any():
        *whole, pending = (pending + chunk).split(b"\n")
        for raw in whole:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)
