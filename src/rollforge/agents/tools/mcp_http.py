"""MCP over streamable HTTP: the official `mcp` package's transport with our limits, and the reason it failed.

The package reports an HTTP error as a JSON-RPC error with a text of its own. A response hook keeps the status, so that a
lost session (404) is distinguished from an error that a tool returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from rollforge.endpoint import MAX_RESPONSE_BYTES, proxy_for


class HttpConnection:
    """One session with the server at a URL."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._url = url
        self._headers = dict(headers or {})
        self._fault = ""

    @property
    def reason(self) -> str:
        """Why the connection is unusable; empty while no HTTP error occurred."""
        return self._fault

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Open a session; it ends with a DELETE when the context exits."""
        client = httpx2.AsyncClient(
            # Our own time limits apply to each call; a tool may think for longer than any default.
            timeout=httpx2.Timeout(30, read=None),
            headers={**self._headers, "Accept-Encoding": "identity"},
            event_hooks={"response": [self._check]},
            trust_env=False,  # servers on this machine are asked directly, and ~/.netrc is not used
            proxy=proxy_for(self._url),
        )
        try:
            async with (
                client,
                streamable_http_client(
                    self._url, http_client=client, max_sse_event_size=self._max_bytes
                ) as streams,
            ):
                yield streams
        except* httpx2.HTTPError as errors:
            error = _first(errors)
            prefix = "Cannot connect: " if isinstance(error, httpx2.ConnectError) else ""
            self._fault = f"{self._url}: {prefix}{type(error).__name__}: {error}"
            raise

    async def _check(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" and response.status_code >= 400:
            self._fault = f"{self._url}: HTTP {response.status_code}"
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.RemoteProtocolError("compressed although the request forbids it")
        response.stream = _Limited(response.stream, self._max_bytes)


class _Limited(httpx2.AsyncByteStream):
    """A response body with a size limit in bytes."""

    def __init__(self, stream: object, limit: int) -> None:
        self._limit = limit
        assert isinstance(stream, httpx2.AsyncByteStream)
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._stream:
            received += len(piece)
            if received > self._limit:
                raise httpx2.RemoteProtocolError(
                    f"an answer of more than {self._limit:,} bytes (--max-response-bytes)"
                )
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _first(errors: BaseExceptionGroup[httpx2.HTTPError]) -> BaseException:
    """The first leaf of nested exception groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
