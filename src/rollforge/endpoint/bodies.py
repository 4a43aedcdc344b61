"""Reads a server's answer within limits: bytes on the wire, bytes after decompression, and the number of large answers.

A server decides what it sends; we decide how much of it enters memory. Bodies are read and decompressed piece by piece, so
neither an endless answer nor a gzip bomb takes more than its limit. Only a few answers above `SMALL_BYTES` are held at a time,
whatever the concurrency; the others wait, unread, in the kernel's buffers.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from rollforge.errors import Boundary, Failure
from rollforge.runtime.on_error import OnError
from rollforge.text_safety.outgoing import cut

MAX_RESPONSE_BYTES = 64 << 20
"""The default of `--max-response-bytes`."""

ERROR_BYTES = 64 << 10
"""How much of an error's body is read; enough for a message."""

SMALL_BYTES = 1 << 20
"""Answers up to this size need no slot."""

LARGE_AT_ONCE = 2

MAX_HEADER_BYTES, MAX_HEADERS = 16 << 10, 128
MOST_INTERIM = 50
"""Most interim answers (100 Continue, 103 Early Hints) before the final answer."""

_PIECE = 64 << 10
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


class _BoundedHandler(ResponseHandler):
    """A connection with a limit on interim answers, which aiohttp queues faster than it drops them."""

    _interim = 0

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim > MOST_INTERIM:
            self.abort()
            message = f"more than {MOST_INTERIM} interim answers before the answer itself"
            self.set_exception(HttpProcessingError(code=502, message=message))
            return
        super().feed_data(data, size)


def open_session(
    *,
    keepalive_s: float,
    headers: Mapping[str, str] | None = None,
    timeout: aiohttp.ClientTimeout | None = None,
    watches_redirects: bool = False,
) -> aiohttp.ClientSession:
    """An HTTP session with limits on headers and interim answers; `read_body` limits the body.

    It has no connection limit of its own, and no shared cookie jar, since cookies belong to rollouts.

    Args:
        watches_redirects: Refuse redirects that the library would follow: a WebSocket's handshake has no option against them.
    """
    watch = aiohttp.TraceConfig()
    watch.on_request_redirect.append(_refuse_redirect)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s, ttl_dns_cache=300)
    # aiohttp has no public place for a protocol of one's own.
    make = partial(_BoundedHandler, loop=asyncio.get_running_loop())
    connector._factory = cast("partial[ResponseHandler]", make)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout or aiohttp.ClientTimeout(),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,  # `read_body` does it within limits
        trace_configs=[watch] if watches_redirects else None,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
    )


async def _refuse_redirect(_: object, __: object, redirected: aiohttp.TraceRequestRedirectParams) -> None:
    where = redirected.response.headers.get("Location", "nowhere")
    raise aiohttp.ClientError(f"it redirects to {cut(where, 200)!r}, which is refused")


class HttpAnswer(Protocol):
    """The part of `aiohttp.ClientResponse` that reading needs; automatic decompression must be off."""

    @property
    def headers(self) -> Any: ...
    @property
    def content(self) -> Any: ...
    def close(self) -> None: ...


class LargeSlots:
    """Slots for large answers. A rollout holds at most one, from its first large answer until `release`."""

    def __init__(self, count: int = LARGE_AT_ONCE) -> None:
        self._slots = asyncio.Semaphore(count)
        self._holders: set[object] = set()

    async def acquire(self) -> None:
        """Take a slot for the current task; a second call has no effect."""
        task = asyncio.current_task()
        if task not in self._holders:
            await self._slots.acquire()
            self._holders.add(task)

    def release(self) -> None:
        """Give the current task's slot back, if it has one."""
        task = asyncio.current_task()
        if task in self._holders:
            self._holders.discard(task)
            self._slots.release()


async def read_body(
    answer: HttpAnswer,
    limit: int = MAX_RESPONSE_BYTES,
    *,
    boundary: Boundary = "model",
    slots: LargeSlots | None = None,
) -> bytes:
    """The whole body, decompressed. The connection is closed unless the body is read to its end.

    Raises:
        Failure: of class `oversized` above `limit` bytes, `transient` for invalid compressed data.
    """
    with OnError(answer.close):  # the connection is not used again
        return await _read(answer, limit, boundary, slots)


async def read_error_body(answer: HttpAnswer) -> bytes:
    """The beginning of an error's body; the rest is not read."""
    try:
        return await _read(answer, ERROR_BYTES, "model", None, cuts=True)
    except Failure:  # the status decides the class of an error, whatever its body
        return b""
    finally:
        if not answer.content.at_eof():
            answer.close()


async def _read(
    answer: HttpAnswer, limit: int, boundary: Boundary, slots: LargeSlots | None, *, cuts: bool = False
) -> bytes:
    announced = answer.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) > limit and not cuts:
        raise _oversized(boundary, limit)
    unpack = _unpacker(answer.headers.get("Content-Encoding", ""), boundary)
    pieces: list[bytes] = []
    size = sent = 0
    async for block in answer.content.iter_any():
        sent += len(block)
        if sent > limit + _PIECE:  # compressed to more than it holds, such as endless empty gzip members
            if cuts:
                break
            raise _oversized(boundary, limit)
        for piece in unpack(block):
            size += len(piece)
            if size > limit and cuts:
                pieces.append(piece[: limit - size + len(piece)])
                return b"".join(pieces)
            if size > limit:
                raise _oversized(boundary, limit)
            pieces.append(piece)
            if size > SMALL_BYTES and slots is not None:
                await slots.acquire()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _oversized(boundary: Boundary, limit: int) -> Failure:
    return Failure(boundary, "oversized", f"the answer is larger than {limit:,} bytes (--max-response-bytes)")


def _unpacker(encoding: str, boundary: Boundary) -> Any:
    """A function that decompresses one received block to pieces of at most 64 KB."""
    match encoding.strip().lower():
        case "" | "identity":
            return lambda block: (block,)
        case "gzip" | "x-gzip" | "deflate":
            return _Inflater(boundary)
        case _:
            raise Failure(
                boundary,
                "transient",
                f"the answer has the encoding {encoding[:40]!r}, which was not asked for",
            )


class _Inflater:
    """Decompresses gzip, zlib and raw deflate in pieces of bounded size."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._stream = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._is_first = True

    def __call__(self, block: bytes) -> Any:
        while block:
            try:
                piece = self._stream.decompress(block, _PIECE)
            except zlib.error as error:
                if not self._is_first:
                    raise Failure(
                        self._boundary, "transient", f"the answer cannot be decompressed: {error}"
                    ) from error
                self._is_first = False
                self._stream = zlib.decompressobj(
                    -zlib.MAX_WBITS
                )  # raw deflate, as some servers mean by the name
                continue
            self._is_first = False
            if piece:
                yield piece
            block = self._stream.unconsumed_tail
            if self._stream.eof:
                block = self._stream.unused_data
                if block:
                    self._stream = zlib.decompressobj(_ZLIB_OR_GZIP)
            elif not piece and not block:
                return
