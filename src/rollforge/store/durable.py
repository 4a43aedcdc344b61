"""This module appends lines so that an acknowledged one survives kill -9 and power loss.

Lines are gathered for a moment and committed together: one write and one fdatasync for many (group commit). A failed write is
undone, so that the file always ends with a whole line. It does not know what the lines mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path

import msgspec

from rollforge.errors import IncompleteError

logger = logging.getLogger(__name__)

COMMIT_DELAY_S = 0.02
"""How long a line may wait for company; measured to cost nothing in throughput and little in delay."""

BACKLOG_BYTES = 64 << 20
"""More than this waiting to be written means the disk is the bottleneck: `room` makes the producer wait."""


class DurableFile:
    """An append-only file of lines with group commit. One per process and path; the caller holds the run's lock."""

    def __init__(self, path: Path, *, delay_s: float = COMMIT_DELAY_S) -> None:
        self.path = path
        self.commits = 0
        self.commit_s = 0.0
        self.bytes_written = 0
        self._delay_s = delay_s
        self._fd = -1
        self._size = 0
        self._lines: list[bytes] = []
        self._backlog = 0
        self._acknowledged: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._committer: asyncio.Task[None] | None = None
        self._error: IncompleteError | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Mend a torn tail and open for appending."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        mend_tail(self.path)
        is_new = not self.path.exists()
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size
        if is_new:
            sync_directory(self.path.parent)
        self._committer = asyncio.create_task(self._commit_forever())

    def append(self, line: bytes) -> asyncio.Future[None]:
        """Queue one line (without its newline). The future is done when the line is on disk, or raises why it is not."""
        if self._error:
            raise self._error
        if self._acknowledged is None:
            self._acknowledged = asyncio.get_running_loop().create_future()
        self._lines.append(line)
        self._backlog += len(line) + 1
        if self._backlog > BACKLOG_BYTES:
            self._room.clear()
        self._wake.set()
        return self._acknowledged

    async def room(self) -> None:
        """Wait until the backlog is small enough to take more."""
        if not self._room.is_set():
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until everything appended so far is on disk."""
        if self._acknowledged is not None:
            await asyncio.shield(self._acknowledged)

    async def close(self) -> None:
        """Commit what is queued and release the file."""
        if self._fd < 0:
            return
        self._is_closing = True
        self._wake.set()
        if self._committer is not None:
            await self._committer
        os.close(self._fd)
        self._fd = -1
        if self._error:
            raise self._error

    async def _commit_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if not self._is_closing:
                await asyncio.sleep(self._delay_s)
            self._wake.clear()
            lines, acknowledged = self._lines, self._acknowledged
            self._lines, self._acknowledged, self._backlog = [], None, 0
            if lines and acknowledged is not None:
                try:
                    await loop.run_in_executor(None, self._commit, lines)
                except OSError as error:
                    self._fail(error, acknowledged)
                    return
                finally:
                    self._room.set()
                if not acknowledged.done():  # a run that is aborted cancels what waits for it
                    acknowledged.set_result(None)
            if self._is_closing and not self._lines:
                return

    def _commit(self, lines: list[bytes]) -> None:
        """Write whole lines and sync. On an error the file is cut back to its last whole line."""
        lines.append(b"")  # so that the last line gets its newline too
        data = memoryview(b"\n".join(lines))
        started = time.perf_counter()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        written = os.fstat(self._fd).st_size
        self.bytes_written += written - self._size
        self._size = written
        self.commits += 1
        self.commit_s += time.perf_counter() - started

    def _fail(self, error: OSError, acknowledged: asyncio.Future[None]) -> None:
        self._error = IncompleteError(
            f"{self.path}: cannot write: {error.strerror or error}",
            hint="free some space, then run the same command again: it resumes with what is on disk",
        )
        for future in (acknowledged, self._acknowledged):
            if future is not None and not future.done():
                future.set_exception(self._error)
                future.exception()  # nobody may be waiting; the error is raised by the next append or close


def mend_tail(path: Path) -> int:
    """Make the file end with a whole line before anything is appended; returns how many bytes were cut.

    A last line that is whole but lacks its newline is kept and ended; a torn one is cut.
    """
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        keep = _end_of_last_line(path, size)
        if keep == size:
            return 0
        file.seek(keep)
        tail = file.read()
        if _is_object(tail):
            file.write(b"\n")
            cut = 0
        else:
            file.truncate(keep)
            cut = size - keep
            logger.warning("%s: cut a torn last line of %d bytes", path, cut)
        file.flush()
        os.fsync(file.fileno())
    return cut


def _end_of_last_line(path: Path, size: int) -> int:
    """The offset just after the last newline, reading backwards in blocks."""
    block = 1 << 16
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file as a whole: a reader sees the old bytes or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a new name in a directory survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync a directory; the file's own sync still holds
        logger.debug("cannot sync directory %s", path)
    finally:
        os.close(handle)
