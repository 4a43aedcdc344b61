"""The simulated model over HTTP on loopback: connections, delays, and transport faults.

A reply without delay is written in the call that received the request; only delayed replies need asyncio tasks. A request thus
takes about a tenth of a millisecond, fast enough to rehearse a million rollouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, cast

from rollforge.errors import UsageError
from rollforge.records import to_json
from rollforge.simulate import hostile_bodies
from rollforge.simulate.faults import Fault
from rollforge.simulate.kv_cache import KvRequest
from rollforge.simulate.service import PlannedReply, Service, Stats
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.simulate.wire import (
    LAST_CHUNK,
    BadRequest,
    Head,
    HttpReply,
    HttpRequest,
    chunk,
    read_body,
    read_head,
)

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 5.0
"""How long an idle connection stays open in a dialect with a thread per connection."""
_SILENT = frozenset({"hang", "reset", "down"})
"""Faults that send no complete reply."""


class SimulatedServer:
    """The server in this process: `async with SimulatedServer(options) as server: server.base_url`."""

    def __init__(self, options: SimulateOptions | None = None) -> None:
        self.options = options or SimulateOptions()
        self.options.check()
        self.service = Service(self.options)
        # The name may resolve to two addresses, which would take two different free ports.
        self.host = "127.0.0.1" if self.options.host == "localhost" else self.options.host
        self.port = self.options.port
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.threads = _Threads(self.service.dialect.connection_threads)
        self._gate = asyncio.Semaphore(self.options.capacity) if self.options.capacity else None

    @property
    def base_url(self) -> str:
        """Base URL for clients, including `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"

    @property
    def stats(self) -> Stats:
        """Counters so far."""
        return self.service.stats

    async def start(self) -> None:
        """Start listening."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: _Connection(self), self.host, self.options.port, backlog=4096
            )
        except OSError as error:
            address = f"{self.options.host}:{self.options.port}"
            raise UsageError(
                f"cannot listen on {address}: {error.strerror or error}", hint="choose another --port"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)
        self._listener = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def serve(self, connection: _Connection, request: HttpRequest) -> None:
        """Reply to one request, immediately or after its delay."""
        outcome = self.service.outcome(request)
        is_timed = outcome.delay or outcome.pace or outcome.manner
        if not is_timed and not (self._gate and outcome.uses_capacity) and not self._is_cached(outcome):
            self.stats.by_status[str(outcome.reply.status)] += 1
            self.stats.peak_in_flight = max(self.stats.peak_in_flight, self.stats.in_flight + 1)
            connection.send(outcome.reply.to_bytes(), keep_alive=request.keeps_alive)
        else:
            connection.begin(self._deliver(connection, outcome, request.keeps_alive))

    def _is_cached(self, outcome: PlannedReply) -> bool:
        """Whether the KV-cache model determines the reply's duration."""
        return self.service.kv is not None and outcome.tokens is not None

    async def _generate(self, outcome: PlannedReply) -> None:
        """Wait until the KV-cache model has generated the answer."""
        server = self.service.kv
        assert server is not None and outcome.tokens is not None
        prompt, generated = outcome.tokens
        request = KvRequest(prompt, generated)
        server.advance_to(time.monotonic())
        server.add(request)
        try:
            while not request.is_finished:
                await asyncio.sleep(0.02)
                server.advance_to(time.monotonic())
        finally:
            server.drop(request)

    async def _deliver(self, connection: _Connection, outcome: PlannedReply, keep_alive: bool) -> None:
        stats = self.stats
        stats.in_flight += 1
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        try:
            async with self._gate if self._gate and outcome.uses_capacity else contextlib.nullcontext():
                await asyncio.sleep(outcome.delay)
                if self._is_cached(outcome):
                    await self._generate(outcome)
                if outcome.manner:
                    await _mangle(connection, outcome, keep_alive)
                elif outcome.pace:
                    await _send_events(connection, outcome.reply, outcome.pace, keep_alive=keep_alive)
                else:
                    connection.send(outcome.reply.to_bytes(), keep_alive=keep_alive)
            is_silent = outcome.manner is not None and outcome.manner.kind in _SILENT
            stats.by_status["none" if is_silent else str(outcome.reply.status)] += 1
        except asyncio.CancelledError:
            stats.abandoned += 1
            raise
        finally:
            stats.in_flight -= 1

    def add(self, connection: _Connection) -> None:
        """Register an open connection."""
        self._connections.add(connection)
        self.threads.take(connection)

    def remove(self, connection: _Connection) -> None:
        """Unregister a closed connection."""
        self._connections.discard(connection)
        self.threads.give_back(connection)


class _Threads:
    """A thread per connection, as in cpp-httplib: a connection occupies its thread until it closes, and others wait."""

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._waiting: list[_Connection] = []
        self._holders: set[_Connection] = set()

    def take(self, connection: _Connection) -> None:
        """Give the connection a thread, or queue it."""
        if self._count is None or len(self._holders) < self._count:
            self._holders.add(connection)
            connection.has_thread = True
        else:
            self._waiting.append(connection)

    def give_back(self, connection: _Connection) -> None:
        """Pass the connection's thread to the longest waiting one."""
        if connection in self._waiting:
            self._waiting.remove(connection)
        self._holders.discard(connection)
        if self._waiting:
            following = self._waiting.pop(0)
            self.take(following)
            following.advance()

    def watch_idle(self, connection: _Connection) -> None:
        """Close the connection after an idle period."""
        if self._count is not None:
            asyncio.get_running_loop().call_later(KEEP_ALIVE_S, connection.close_if_idle, connection.served)


async def _mangle(connection: _Connection, outcome: PlannedReply, keep_alive: bool) -> None:
    """Send the reply with its transport fault."""
    reply, fault, chance = outcome.reply, outcome.manner, outcome.chance
    assert fault is not None and chance is not None
    match fault.kind:
        case "hang":
            await asyncio.sleep(fault.seconds())
            connection.drop()
        case "drip" if reply.events:
            await _send_events(connection, reply, fault.seconds(), keep_alive=keep_alive)
        case "torn" if reply.events:
            half = reply._replace(events=reply.events[: len(reply.events) // 2])
            if fault.choose("content_length", chance) == "right":
                connection.send(half.to_bytes(), keep_alive=keep_alive)
            else:
                connection.send(half.to_bytes()[: -len(LAST_CHUNK) - 20], keep_alive=False)
        case "drip":
            for byte in reply.to_bytes():
                connection.send(bytes((byte,)))
                await asyncio.sleep(fault.seconds())
            connection.send(b"", keep_alive=keep_alive)
        case "torn":
            part = reply.body[: len(reply.body) // 2]
            is_right = fault.choose("content_length", chance) == "right"
            connection.send(
                reply.head(len(part) if is_right else len(reply.body)) + part,
                keep_alive=is_right and keep_alive,
            )
        case "reset" if fault.choose("when", chance) == "during":
            whole = reply.to_bytes()
            connection.send(whole[: len(whole) - len(reply.body) // 2])
            await asyncio.sleep(0.01)
            connection.reset()
        case "endless" | "large-body" | "gzip-bomb":
            await _stream(connection, reply, fault, keep_alive)
        case _:
            connection.reset()


async def _send_events(
    connection: _Connection, reply: HttpReply, seconds: float, *, keep_alive: bool
) -> None:
    """Send a stream event by event, with a pause after each one."""
    connection.send(reply.head(chunked=True))
    for event in reply.events:
        connection.send(chunk(event))
        await connection.drained()
        await asyncio.sleep(seconds)
    connection.send(LAST_CHUNK, keep_alive=keep_alive)


async def _stream(connection: _Connection, reply: HttpReply, fault: Fault, keep_alive: bool) -> None:
    """Send an oversized body, no faster than the client reads it."""
    if fault.kind == "gzip-bomb":
        reply = reply._replace(headers=(*reply.headers, ("Content-Encoding", "gzip")))
        pieces = hostile_bodies.gzip_bomb(reply.body, fault.megabytes() or 0)
    elif fault.kind == "large-body":
        pieces = hostile_bodies.padded(reply.body, fault.megabytes() or 0)
    else:
        reply = reply._replace(status=int(fault.options["status"]))
        pieces = hostile_bodies.endless(fault.megabytes())
    connection.send(reply.head(chunked=True))
    for piece in pieces:
        connection.send(chunk(piece))
        await connection.drained()
        await asyncio.sleep(0)  # the transport may accept everything at once: let the other connections in
    if fault.kind == "endless":
        connection.reset()
    else:
        connection.send(LAST_CHUNK, keep_alive=keep_alive)


class _Connection(asyncio.Protocol):
    """One client's connection: requests are answered in sequence."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self.has_thread = False
        self.served = 0
        self._buffer = bytearray()
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for sending."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._server.add(self)
        if self._server.service.is_refusing_connections():
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.remove(self)
        if self._task:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drained(self) -> None:
        """Wait until the client has read enough to send more."""
        await self._writable.wait()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.advance()

    def send(self, data: bytes, *, keep_alive: bool = True) -> None:
        """Write bytes, then close the connection unless it is kept alive."""
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)
            if not keep_alive:
                self._transport.close()

    def begin(self, delivery: Coroutine[Any, Any, None]) -> None:
        """Reply from a task; the next request waits for it."""
        self._task = asyncio.get_running_loop().create_task(delivery)
        self._task.add_done_callback(self._delivered)

    def close_if_idle(self, served: int) -> None:
        """Close the connection unless a request arrived after the first `served` ones."""
        if self.served == served and self._task is None and self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    def reset(self) -> None:
        """Close with a TCP reset instead of an orderly shutdown."""
        if self._transport:
            raw = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # Our own mistake: the client sees a closed connection instead of waiting forever.
            logger.error("a reply was not delivered: %s: %s", type(error).__name__, error, exc_info=error)
            self.drop()
            return
        self.advance()

    def advance(self) -> None:
        """Serve the complete requests in the buffer, until one has to wait."""
        try:
            while self._task is None and (request := self._next_request()):
                self.served += 1
                self._server.serve(self, request)
            if self._task is None and self.served:
                self._server.threads.watch_idle(self)
        except BadRequest as error:
            body = to_json(
                {
                    "error": {
                        "message": str(error),
                        "type": "invalid_request_error",
                        "param": None,
                        "code": None,
                    }
                }
            )
            self.send(HttpReply(error.status, body).to_bytes(), keep_alive=False)

    def _next_request(self) -> HttpRequest | None:
        if self.is_closed or not self.has_thread:
            return None
        if self._head is None:
            self._head = read_head(self._buffer)
            if self._head and "expect" in self._head.headers:
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._head is None or (framed := read_body(self._buffer, self._head)) is None:
            return None
        body, end = framed
        head, self._head = self._head, None
        del self._buffer[:end]
        return HttpRequest(head.method, head.path, head.headers, body, head.query)


def run_quickly(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop if installed, else on asyncio's loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
