"""An exclusive lock on a run: one process at a time writes to it.

The kernel releases the lock whenever the process dies, so there are no stale locks. The file's text only tells people who holds
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType

import msgspec

from rollforge.errors import UsageError
from rollforge.runtime.on_error import OnError
from rollforge.store.atomic import make_directory, open_for_writing
from rollforge.store.reading import UNREADABLE
from rollforge.store.shipping import copy_of

LOOKERS_S, TRY_EVERY_S = 10.0, 0.002
"""How long and how often a writer retries if it only meets processes that test whether the lock is held."""


class RunLock:
    """An exclusive lock on a run, held from `__enter__` to `__exit__`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RunLock:
        try:
            make_directory(self._path.parent)
        except FileNotFoundError as error:  # no directory can be made there, as in /proc
            raise UsageError(f"{self._path.parent}: cannot be made", hint="choose another --out") from error
        while True:
            fd = open_for_writing(self._path, os.O_RDWR)
            if not _takes(fd):
                holder = os.read(fd, 4096)
                os.close(fd)
                raise UsageError(
                    f"another process is writing to this run{_describe(holder)}",
                    hint=f"wait for it, or watch it: rollforge status {self._path.parent}",
                )
            if _is_same_file(fd, self._path):
                break
            os.close(fd)  # the last holder removed the file between our open and our lock
        os.ftruncate(fd, 0)
        os.write(
            fd, msgspec.json.encode({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
        )
        self._fd = fd
        if (copy := copy_of(self._path)) is not None:
            with OnError(lambda: self.__exit__(None, None, None)):
                self._stack.enter_context(copy.held())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._stack.close()
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = -1


def _takes(fd: int) -> bool:
    """Try to lock the file exclusively; False if another process writes.

    `is_held` briefly takes a shared lock. If we can get a shared lock too, nobody writes, and we retry.
    """
    deadline = time.monotonic() + LOOKERS_S
    while not _locks(fd, fcntl.LOCK_EX):
        if not _locks(fd, fcntl.LOCK_SH) or time.monotonic() > deadline:
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(TRY_EVERY_S)
    return True


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _locks(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def was_killed(path: Path) -> bool:
    """Whether the last holder died without releasing the lock: its file still exists."""
    return path.exists() and not is_held(path)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _describe(holder: bytes) -> str:
    try:
        about = msgspec.json.decode(holder)
        return f" (process {about['pid']} on {about['host']})"
    except (*UNREADABLE, KeyError, TypeError):
        return ""
