"""Append-only files whose acknowledged lines survive kill -9 and power loss.

Group commit: lines wait briefly for others, then one write and one sync commit all of them. A failed write is undone, so the file
always ends with a complete line. Any exception in the committer fails all waiting and later lines, so no caller waits for a dead
task. Lines are not interpreted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

from rollforge.errors import IncompleteError
from rollforge.runtime.on_error import OnError
from rollforge.store.atomic import make_directory, open_for_writing, sync_directory, sync_file
from rollforge.store.shipping import SHIPPED_DELAY_S, copy_of
from rollforge.store.tail import mend_tail
from rollforge.text_safety.outgoing import outgoing_bytes

logger = logging.getLogger(__name__)

COMMIT_DELAY_S = 0.02
"""How long a line may wait for others; the measured cost in throughput and delay is negligible."""

BACKLOG_BYTES = 64 << 20
"""Size of the backlog above which the disk is the bottleneck, and `room` makes producers wait."""


class DurableFile:
    """An append-only file of lines with group commit. One per process and path; the caller holds the run's lock."""

    advice = "free some space, then run the same command again"
    """Advice for the user if lines cannot be written."""

    def __init__(self, path: Path, *, delay_s: float = COMMIT_DELAY_S) -> None:
        self.path = path
        self.commits = 0
        self.commit_s = 0.0
        self.bytes_written = 0
        self.bytes_cut = 0
        """Bytes of a torn tail that `start` removed."""
        self._copy = copy_of(path)
        self._delay_s = delay_s if self._copy is None else SHIPPED_DELAY_S
        self._fd = -1
        self._size = 0
        self._lines: list[bytes] = []
        self._backlog = 0
        self._acknowledged: asyncio.Future[None] | None = None
        """Future for the waiting lines, done when they are on disk."""
        self._committing: asyncio.Future[None] | None = None
        """Future for the lines being written now, done when they are on disk."""
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._committer: asyncio.Task[None] | None = None
        self._error: IncompleteError | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Repair a torn tail and open the file for appending."""
        self._open()
        self._committer = asyncio.create_task(self._commit_until_closed())

    def _open(self) -> None:
        make_directory(self.path.parent)
        self.bytes_cut = mend_tail(self.path)
        is_new = not self.path.exists()
        self._fd = open_for_writing(self.path, os.O_WRONLY | os.O_APPEND)
        self._size = os.fstat(self._fd).st_size
        if is_new:
            sync_directory(self.path.parent)

    def _release(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def append(self, line: bytes) -> asyncio.Future[None]:
        """Queue one line (without its newline); secrets in it are masked.

        The future is done when the line is on disk, or has the error.
        """
        if self._error:
            raise self._error
        if self._acknowledged is None:
            self._acknowledged = asyncio.get_running_loop().create_future()
        line = outgoing_bytes(line)
        self._lines.append(line)
        self._backlog += len(line) + 1
        if self._backlog > BACKLOG_BYTES:
            self._room.clear()
        self._wake.set()
        return self._acknowledged

    async def room(self) -> None:
        """Wait until the backlog is small enough; raises if the file is no longer writable."""
        if not self._room.is_set():
            await self._room.wait()
        if self._error:
            raise self._error

    async def flush(self) -> None:
        """Wait until all appended lines are on disk."""
        if self._error:
            raise self._error
        last = self._acknowledged or self._committing
        if last is not None:
            await asyncio.shield(last)

    async def close(self) -> None:
        """Commit queued lines and close the file; raises if a line was not committed."""
        if self._committer is None:
            return
        self._is_closing = True
        self._wake.set()
        await asyncio.wait([self._committer])
        self._committer = None
        self._release()
        if self._error:
            raise self._error

    async def _commit_until_closed(self) -> None:
        """Commit lines as they arrive. If this task ends for any reason, `_fail` releases all waiting callers."""
        try:
            while not (self._is_closing and not self._lines):
                await self._wake.wait()
                if not self._is_closing:
                    await asyncio.sleep(self._delay_s)
                self._wake.clear()
                if self._lines:
                    await self._commit_waiting()
        except asyncio.CancelledError as error:
            self._fail(error)
            raise
        except BaseException as error:  # noqa: BLE001  (whatever it is, callers must learn of it; they raise it)
            self._fail(error)

    async def _commit_waiting(self) -> None:
        lines, self._lines, self._backlog = self._lines, [], 0
        self._committing, self._acknowledged = self._acknowledged, None
        await asyncio.get_running_loop().run_in_executor(None, self._commit, lines)
        committed, self._committing = self._committing, None
        if committed is not None and not committed.done():  # an aborted run cancels what it waits for
            committed.set_result(None)
        self._room.set()

    def _cut_back(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)

    def _commit(self, lines: list[bytes]) -> None:
        """Write complete lines and sync. On an error, truncate the file to its last complete line."""
        lines.append(b"")  # so that the last line gets its newline too
        whole = b"\n".join(lines)
        data = memoryview(whole)
        started = time.perf_counter()
        with OnError(self._cut_back):
            while data:
                data = data[os.write(self._fd, data) :]
            sync_file(self._fd)
            if self._copy is not None:
                self._copy.append(self.path, whole)
        written = os.fstat(self._fd).st_size
        self.bytes_written += written - self._size
        self._size = written
        if self._copy is not None:
            self._copy.recorded(self.path, written)
        self.commits += 1
        self.commit_s += time.perf_counter() - started

    def _fail(self, error: BaseException) -> None:
        """Refuse all further lines, and fail the waiting ones."""
        if isinstance(error, OSError):
            reason, advice = error.strerror or str(error), self.advice
        else:
            reason, advice = f"{type(error).__name__}: {error}", "run the same command again"
            logger.debug("the committer of %s ended", self.path, exc_info=error)
        self._error = IncompleteError(
            f"{self.path}: cannot write: {reason}", hint=f"{advice}: it resumes with what is on disk"
        )
        for future in (self._committing, self._acknowledged):
            if future is not None and not future.done():
                future.set_exception(self._error)
                future.exception()  # if no caller waits, the next append or close raises it
        self._committing = self._acknowledged = None
        self._lines = []
        self._room.set()
