"""This module reaches an MCP server that is a process: one JSON message per line on its standard input and output.

The process has its own session, so that a Ctrl-C meant for the run leaves it up while the run drains; it is ended with the
connection, by force if need be.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shlex
import signal
from collections import deque

from rollforge.agents.tools.mcp_messages import gone, parse, reply_to, result_of, to_notification, to_request
from rollforge.errors import Failure
from rollforge.records import JsonObject

LONGEST_LINE = 256 << 20
GRACE_S = 2.0
"""How long the process may take to end by itself, and then to obey a signal."""


class StdioConnection:
    """One process."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[JsonObject]] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._last_words: deque[str] = deque(maxlen=5)
        self._reason: Failure | None = None

    async def open(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as error:
            raise gone(f"{self._command[0]} cannot be started: {error.strerror or error}") from error
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    def agree(self, protocol: str) -> None:
        """Over this way, the version is not repeated."""

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        number = next(self._numbers)
        future: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._write(to_request(number, method, params))
            return result_of(await future)
        finally:
            self._waiting.pop(number, None)

    async def notify(self, method: str) -> None:
        await self._write(to_notification(method))

    async def close(self) -> None:
        """Close its input, then ask, then force."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await process.wait()
                        break
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever it started and left behind
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(*self._readers, return_exceptions=True)

    async def _write(self, data: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise await self._ending()
        try:
            process.stdin.write(data + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError, OSError) as error:
            raise await self._ending() from error

    async def _ending(self) -> Failure:
        """Why it takes nothing any more, once all it said has been read: that may tell more than that it has ended."""
        others = [reader for reader in self._readers if reader is not asyncio.current_task()]
        if self._process is not None and others:
            await asyncio.wait(others, timeout=GRACE_S)
        return self._reason or gone(self._why())

    async def _read(self) -> None:
        """Hand every answer to whoever waits for it; when the output ends, so does the waiting."""
        process = self._process
        assert process is not None and process.stdout is not None
        try:
            while line := await process.stdout.readline():
                if line.strip():
                    await self._take(parse(line))
        except (Failure, ValueError) as error:  # a line that is no message, or one that is far too long
            self._reason = error if isinstance(error, Failure) else gone(str(error))
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._reason or gone(self._why()))

    async def _take(self, message: JsonObject) -> None:
        future = self._waiting.get(message.get("id") or 0) if "method" not in message else None
        if future is not None and not future.done():
            future.set_result(message)
        elif (reply := reply_to(message)) is not None:
            await self._write(reply)

    async def _read_errors(self) -> None:
        """Keep its last words for a message; reading also keeps it from blocking on a full pipe."""
        process = self._process
        assert process is not None and process.stderr is not None
        with contextlib.suppress(ValueError):
            while line := await process.stderr.readline():
                self._last_words.append(line.decode("utf-8", "replace").rstrip())

    def _why(self) -> str:
        words = f": {self._last_words[-1]}" if self._last_words else ""
        return f"{self._command[0]} has ended{words}"
