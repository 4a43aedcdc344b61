"""Storage interface of shards, and its implementation on disk; that for buckets is in `bucket_storage.py`.

Safety depends on one operation: `create` succeeds for exactly one caller per name. All others are plain reads, listings and
appends to single-writer files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from rollforge.store.atomic import make_directory, new_file, replacing, sync_directory, sync_file
from rollforge.store.reading import bounded_lines, line_start
from rollforge.text_safety.outgoing import outgoing_bytes

if TYPE_CHECKING:
    from rollforge.store.durable import DurableFile

BLOCK = 4 << 20


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The valid bytes of a file; later bytes do not count."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A\d+/e\d+/\w+\.jsonl\Z")]
    """Path relative to the shards folder, which it must not leave, because the run may be untrusted."""
    length: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    sha256: str


class ShardStorage(Protocol):
    """Operations that shards need. Names are relative, with `/` between folders."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file durably and atomically; False if the name exists."""
        ...

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if it does not exist."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a small file without syncing; it may be lost in a crash (heartbeats)."""
        ...

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder; none if it does not exist."""
        ...

    def age_s(self, name: str) -> float | None:
        """Seconds since a file was written, by the clock that dated it; None if it does not exist."""
        ...

    def rows(self, name: str) -> DurableFile:
        """Open a line file for appending. Only the epoch that owns the name may call this."""
        ...

    def counted(self, name: str) -> Counted | None:
        """The complete lines that a line file has now; None if it does not exist."""
        ...

    def lines(self, counted: Counted) -> Iterator[bytes]:
        """The valid lines of a file."""
        ...


class DiskStorage:
    """A folder on a local or shared file system.

    Requires `link` or `O_EXCL` to work across hosts: NFS from version 3 on, Lustre, GPFS, CephFS.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, name: str, data: bytes) -> bool:
        target = self.root / name
        make_directory(target.parent)
        file = new_file(target.parent, prefix=f".{target.name}.")
        try:
            with file:
                file.write(outgoing_bytes(data))
                file.flush()
                sync_file(file.fileno())
            return _link(Path(file.name), target)
        finally:
            Path(file.name).unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        with replacing(self.root / name, syncs=False) as file:
            file.write(outgoing_bytes(data))

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one.name for one in (self.root / folder).iterdir() if not one.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def age_s(self, name: str) -> float | None:
        """Seconds since a file was written; the file server dates both the file and a new one made for comparison."""
        path = self.root / name
        try:
            written = path.stat().st_mtime
        except FileNotFoundError:
            return None
        try:
            with new_file(path.parent, prefix=".clock.") as clock:
                now = os.fstat(clock.fileno()).st_mtime
                Path(clock.name).unlink(missing_ok=True)
        except OSError:  # a reader may not write there; the clocks of most machines agree well enough to look
            now = time.time()
        return max(0.0, now - written)

    def rows(self, name: str) -> DurableFile:
        from rollforge.store.durable import DurableFile  # readers do without asyncio

        return DurableFile(self.root / name)

    def counted(self, name: str) -> Counted | None:
        path = self.root / name
        length = whole_length(path)
        if length is None:
            return None
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            left = length
            while left and (block := file.read(min(BLOCK, left))):
                digest.update(block)
                left -= len(block)
        return Counted(name=name, length=length, sha256=digest.hexdigest())

    def lines(self, counted: Counted) -> Iterator[bytes]:
        return lines_within(self.root / counted.name, counted.length)


def whole_length(path: Path) -> int | None:
    """Number of bytes up to the last newline, since a writer may be in the middle of a line; None if the file does not exist."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    with file:
        return line_start(file, file.seek(0, os.SEEK_END))


def lines_within(path: Path, length: int) -> Iterator[bytes]:
    """The lines in the first `length` bytes of a file."""
    with path.open("rb", buffering=BLOCK) as file:
        yield from bounded_lines(file, length)


def _link(source: Path, target: Path) -> bool:
    """Give a complete file its name, unless the name is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        return _create_exclusively(source.read_bytes(), target)  # a file system without links
    sync_directory(target.parent)
    return True


def _create_exclusively(data: bytes, target: Path) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        handle = os.open(target, flags, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        sync_directory(target.parent)
        return True
    return False
