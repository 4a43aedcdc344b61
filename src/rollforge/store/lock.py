"""An exclusive lock on a run: one process at a time writes to it.

The kernel holds the lock and drops it when the process dies, however it dies, so there are no stale locks to clean. The file's
text only tells people who holds it.
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
from rollforge.store.atomic import make_directory, open_for_writing
from rollforge.store.reading import UNREADABLE


class RunLock:
    """An exclusive lock on a run, held from `__enter__` to `__exit__`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> RunLock:
        try:
            make_directory(self._path.parent)
        except FileNotFoundError as error:  # no directory can be made there, as in /proc
            raise UsageError(f"{self._path.parent}: cannot be made", hint="choose another --out") from error
        while True:
            fd = open_for_writing(self._path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(fd, 4096)
                os.close(fd)
                raise UsageError(
                    f"another process is writing to this run{_describe(holder)}",
                    hint=f"wait for it, or watch it: rollforge status {self._path.parent}",
                ) from None
            if _is_same_file(fd, self._path):
                break
            os.close(fd)  # the last holder removed the file between our open and our lock
        os.ftruncate(fd, 0)
        os.write(
            fd, msgspec.json.encode({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
        )
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)
        self._fd = -1


def is_held(path: Path) -> bool:
    """Whether some live process holds the lock now."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


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
