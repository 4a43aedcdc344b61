"""MCP over a process's standard input and output, as a transport of the official `mcp` package.

The package's own stdio transport has no limit on a line and leaves the server's child processes running. Here lines are limited,
the last lines of stderr appear in the error message, and the whole process group ends with the connection. The process has its
own session, so that a Ctrl-C meant for the run does not reach it while the run drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from rollforge.endpoint import MAX_RESPONSE_BYTES
from rollforge.text_safety.outgoing import cut

GRACE_S = 2.0
"""How long the process may take to exit after its input closes, and again after each signal."""


class StdioConnection:
    """One server process, and the reason it stopped answering."""

    def __init__(self, command: str, *, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._command = shlex.split(command)
        self._last_words: deque[str] = deque(maxlen=5)
        self._fault = ""
        self._said_all = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why the connection ended, in words for the user."""
        words = f": {self._last_words[-1]}" if self._last_words else ""
        return self._fault or f"{self._command[0]} has ended{words}"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Start the process; its group is killed when the context exits."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=self._max_bytes,
                start_new_session=True,
            )
        except OSError as error:
            self._fault = f"{self._command[0]} cannot be started: {error.strerror or error}"
            raise
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        assert process.stdin and process.stdout and process.stderr, "started with pipes"
        async with anyio.create_task_group() as readers:
            readers.start_soon(self._read_errors, process.stderr)
            readers.start_soon(self._read, process.stdout, to_session)
            readers.start_soon(self._write, process.stdin, from_session)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                for stream in (incoming, outgoing, to_session, from_session):
                    stream.close()
                readers.cancel_scope.cancel()

    async def _read(
        self,
        stdout: asyncio.StreamReader,
        to_session: anyio.abc.ObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Pass every message to the session; closing the stream at the end fails pending requests."""
        async with to_session:
            try:
                while line := await stdout.readline():
                    if line.strip():
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        await to_session.send(SessionMessage(message))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return  # the session has ended first
            except ValueError as error:  # not a message (pydantic), or a line beyond the limit (asyncio)
                is_too_long = "limit" in str(error) and "chunk" in str(error)
                self._fault = (
                    f"it sent a message of more than {self._max_bytes:,} bytes (--max-response-bytes)"
                    if is_too_long
                    else f"it speaks no JSON-RPC: {str(error).splitlines()[0]}"
                )
            if not self._fault:
                with anyio.move_on_after(GRACE_S):  # its last words may say more than that it has ended
                    await self._said_all.wait()

    async def _write(
        self, stdin: asyncio.StreamWriter, from_session: anyio.abc.ObjectReceiveStream[SessionMessage]
    ) -> None:
        async with from_session:
            with contextlib.suppress(
                OSError, RuntimeError, anyio.ClosedResourceError
            ):  # `_read` sees the end too
                async for message in from_session:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(text.encode() + b"\n")
                    await stdin.drain()

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        """Keep the last lines of stderr for error messages; reading also keeps a full pipe from blocking the server."""
        try:
            while piece := await stderr.read(65_536):
                lines = piece.decode("utf-8", "replace").splitlines()
                self._last_words.extend(cut(line, 2000) for line in lines if line.strip())
        finally:
            self._said_all.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the process's input, then terminate, then kill its group."""
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
            os.killpg(process.pid, signal.SIGKILL)  # what it started and left behind
