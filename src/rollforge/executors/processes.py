"""Workers in separate processes on this machine, connected through pipes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import sys

from rollforge.executors.base import ExecutorOptions, Hand, Message, WorkerLost, host_name, raise_fault

GRACE_S = 10.0
"""Time that a worker has to exit by itself."""
HEAD = struct.Struct("!?I")
"""Message header: whether it is an answer or an exception, and its length."""
MOST_REPLACED = 3
"""Most replacements per worker, so that a worker that always dies is not restarted for ever."""


class Processes:
    """Starts one Python process per worker; closing its pipe ends it."""

    def __init__(self, options: ExecutorOptions) -> None:
        self._count = options.workers or os.cpu_count() or 1
        self._target = ""
        self._hands: list[_Process] = []
        self._numbers = itertools.count()
        self._replaced = 0

    async def start(self, target: str) -> list[Hand]:
        self._target = target
        for _ in range(self._count):
            self._hands.append(await self._started())
        return [*self._hands]

    async def replace(self, lost: Hand) -> Hand | None:
        if self._replaced >= MOST_REPLACED * self._count:
            raise WorkerLost(f"{self._replaced} workers ended and were replaced; no more are started")
        self._replaced += 1
        hand = await self._started()
        self._hands.append(hand)
        return hand

    async def close(self) -> None:
        await asyncio.gather(*(hand.close() for hand in self._hands))

    def command(self) -> list[str]:
        """The command of one worker, which gets messages on stdin and answers on stdout."""
        return [sys.executable, "-P", "-m", "rollforge.executors.process_worker", self._target]

    async def _started(self) -> _Process:
        name = host_name(
            next(self._numbers)
        )  # before the wait: several may be replaced at once, and a name is one worker's
        process = await asyncio.create_subprocess_exec(
            *self.command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the asker, which then tells its workers
        )
        return _Process(name, process)


class _Process:
    """Handle of a worker process, connected by two pipes."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    async def ask(self, message: Message) -> Message:
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        try:
            if writer.is_closing():  # uvloop raises RuntimeError for a pipe whose other end has gone
                raise EOFError("the pipe is closed")
            writer.write(HEAD.pack(True, len(message)) + message)
            await writer.drain()
            is_answer, length = HEAD.unpack(await reader.readexactly(HEAD.size))
            answer = await reader.readexactly(length)
        except (OSError, EOFError, RuntimeError) as error:
            raise WorkerLost(f"{self.name} (process {self.pid}) ended") from error
        if not is_answer:
            raise_fault(answer, self.name)
        return answer

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
