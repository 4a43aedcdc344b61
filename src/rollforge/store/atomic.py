"""Atomic and durable file replacement: new files appear complete or not at all, and survive power loss.

Every file rollforge replaces goes through `replacing` or `write_atomically`. New files get the mode of the umask (0600 under
077). Symbolic links are never followed for writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rollforge.errors import UsageError
from rollforge.runtime.on_error import OnError
from rollforge.store.shipping import copy_of
from rollforge.text_safety.outgoing import outgoing_bytes

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def replacing(path: Path, *, syncs: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` if the block ends without an exception.

    A reader sees the old bytes or the new, never a mixture. On an exception the old file stays and the temporary one is removed.

    Args:
        syncs: Wait until the new file and its name are on disk; False only for caches, which may be lost.
    """
    make_directory(path.parent)
    file = new_file(path.parent, prefix=f".{path.name}.")
    with OnError(lambda: Path(file.name).unlink(missing_ok=True)):
        with file:
            yield file
            file.flush()
            if syncs:
                sync_file(file.fileno())
        Path(file.name).replace(path)
    if syncs:
        sync_directory(path.parent)
        if (copy := copy_of(path)) is not None:
            copy.replace(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file atomically; secrets in it are masked."""
    with replacing(path) as file:
        file.write(outgoing_bytes(data))


def new_file(folder: Path, *, prefix: str) -> BinaryIO:
    """Create a file with a random name, open for reading and writing, with the mode of the umask."""
    while True:
        name = folder / f"{prefix}{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            os.close(handle)
            return name.open("r+b", buffering=1 << 20)


def open_for_writing(path: Path, flags: int) -> int:
    """Open a run's file for writing, created if it is missing; a symbolic link is refused.

    Raises:
        UsageError: `path` is a symbolic link. Its target could be a foreign file.
    """
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        raise _linked(path) from error


def refuse_links(*folders: Path) -> None:
    """Raise if one of a run's folders is a symbolic link: what is written and deleted in it may be anybody's.

    Raises:
        UsageError: naming the first link.
    """
    for folder in folders:
        if folder.is_symlink():
            raise _linked(folder)


def _linked(path: Path) -> UsageError:
    return UsageError(
        f"{path} is a symbolic link; rollforge does not write through links inside a run",
        hint="move what it points to here, or name the folder the link points into",
    )


def make_directory(path: Path) -> None:
    """Make a directory and its parents durable: a synced file is lost if its directory is."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def sync_file(handle: int) -> None:
    """Wait until the bytes of an open file are on the physical disk."""
    if sys.platform == "darwin":  # pragma: no cover  (fsync there leaves the bytes in the drive's cache)
        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
        except OSError:  # some file systems do not know it
            logger.debug("F_FULLFSYNC is not supported here; using fsync")
    getattr(os, "fdatasync", os.fsync)(handle)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that new names in it survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync a directory; the file's own sync still holds
        logger.debug("cannot sync directory %s", path)
    finally:
        os.close(handle)
