"""The folder of parts of one file: built once, extended when the file grows, rebuilt after any other change or damage.

`state.json` lists the valid parts with checksums, and the bytes of the file they were made from. It is replaced atomically after
its parts are on disk, so a reader sees either the old or the new index. A lock serialises builders. Unlisted parts are removed by
the next builder while no reader holds the index. Deleting the folder only costs a rebuild.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import resource
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec

from rollforge.errors import DataError
from rollforge.index.build import ByteRange, build_parts, read_range
from rollforge.index.identity import have_own_keys
from rollforge.index.jsonl import is_compressed
from rollforge.index.parts import is_intact, make_folder, part_name
from rollforge.index.schema import Kind
from rollforge.index.state import (
    VERSION,
    FileId,
    PartFile,
    Scanned,
    State,
    encode_checked,
    file_id,
    overlapping,
    read_checked,
)
from rollforge.runtime.on_error import OnError
from rollforge.store import write_atomically
from rollforge.store.absent import absent_text
from rollforge.store.atomic import open_for_writing, sync_directory
from rollforge.store.reading import line_start

PROBE = 64 << 10
"""Bytes at the start, and before the end of the indexed part, that must be unchanged for the file to count as grown."""

READ_WHOLE = 32 << 20
"""Files up to this size are compared completely; for larger ones, blocks spread over the file are compared."""

SPARE_FILES = 256
"""File descriptors reserved for purposes other than locks."""

BLOCK, BLOCKS = 4 << 10, 64
"""Size and number of the compared blocks."""

_OURS = re.compile(r"(\d+-\d+-\w+|new-.*)\.parquet|\.state\.json\..*")
"""File name patterns that a builder may delete."""


class HeldIndex:
    """An up-to-date index of one file. Builders do not remove its parts until it is released."""

    def __init__(self, state: State, lock: IO[bytes]) -> None:
        self.state = state
        self._lock = lock

    def release(self) -> None:
        """Let builders remove parts again."""
        self._lock.close()


class IndexCache:
    """The index of one file on disk."""

    def __init__(self, path: Path, kind: Kind, folder: Path, length: int | None = None) -> None:
        self.path = path
        self._length = length  # bytes of the file that count; None: all of them
        self.kind: Kind = kind
        # A file and its compressed copy share a folder, but not an index.
        packed = path.suffix if is_compressed(path) else ""
        self.folder = trusted_folder(folder, path) / f"{kind}{packed}"

    def update(self, workers: int | None = None) -> HeldIndex:
        """Return the index, after building or extending it if necessary."""
        with self._removal_reported():
            held = self._current()
            if held is not None:
                return held
            with self._locked("build.lock", fcntl.LOCK_EX):
                held = self._current()  # another command may have built it meanwhile
                return self._build(workers) if held is None else held

    def _current(self) -> HeldIndex | None:
        """The index if it is up to date, else None."""
        reading = self._locked("use.lock", fcntl.LOCK_SH)
        state = self._load()
        if state is not None and state.made_of == file_id(self.path, self._length):
            return HeldIndex(state, reading)
        reading.close()  # a builder removes parts only without readers
        return None

    def _build(self, workers: int | None) -> HeldIndex:
        if absent_text(self.path) is not None:
            raise DataError(
                f"{self.path}: its index in the bucket is damaged, and its text is not here",
                hint="make it again: rollforge metrics RUN",
            )
        identity, base = file_id(self.path, self._length), self._load()
        if base is None or not self._has_grown(base, identity):
            base = State(build="", made_of=identity, body=Scanned(typed=0))
        state = self._extended(base, identity, workers)
        sync_directory(self.folder)  # the parts' names before the state that names them
        write_atomically(self.folder / "state.json", encode_checked(state))
        self._sweep(state)
        return HeldIndex(state, self._locked("use.lock", fcntl.LOCK_SH))  # before another builder may sweep

    @contextmanager
    def _removal_reported(self) -> Iterator[None]:
        """Report what was removed meanwhile: the file, or the folder of its index."""
        try:
            yield
        except FileNotFoundError as error:
            removed = "it" if not self.path.exists() else self.folder.parent
            raise DataError(
                f"{self.path}: {removed} was removed while it was read", hint="run the command again"
            ) from error

    def _locked(self, name: str, how: int) -> IO[bytes]:
        make_folder(self.folder)
        handle = open_for_writing(self.folder / name, os.O_RDWR)
        file = os.fdopen(handle, "rb+", buffering=0)
        with OnError(file.close):
            fcntl.flock(file, how)
        return file

    def _load(self) -> State | None:
        """The recorded state; None if its version differs, or if it or a part is missing or damaged."""
        state = read_checked(self.folder / "state.json", State)
        if state is None or state.version != VERSION:
            return None
        return state if all(is_intact(self.folder, part) for part in state.parts()) else None

    def _has_grown(self, state: State, identity: FileId) -> bool:
        """Whether the indexed bytes are unchanged and data was only appended (a torn last line may be gone)."""
        was = state.made_of
        if (
            is_compressed(self.path)
            or identity.inode != was.inode
            or identity.size == was.size
            or identity.size < state.body.end
        ):
            return False
        return self._digests(state.body.end) == (state.head_digest, state.tail_digest)

    def _digests(self, end: int) -> tuple[str, str]:
        if is_compressed(self.path):
            return "", ""
        head, tail = hashlib.sha256(), hashlib.sha256()
        with self.path.open("rb", buffering=0) as file:
            if end <= READ_WHOLE:
                head.update(file.read(end))
            else:
                head.update(file.read(PROBE))
                for number in range(1, BLOCKS):
                    file.seek(end // BLOCKS * number)
                    head.update(file.read(BLOCK))
                file.seek(end - PROBE)
                tail.update(file.read(PROBE))
        return head.hexdigest(), tail.hexdigest()

    def _extended(self, base: State, identity: FileId, workers: int | None) -> State:
        """`base` extended by the rest of the file."""
        build = uuid4().hex[:12]
        stem = self.folder / f"new-{build}"
        body = Scanned(typed=0)
        body.add(base.body)
        end = None
        if not is_compressed(self.path):
            with self.path.open("rb", buffering=0) as file:
                end = line_start(file, identity.size)
        if end is None or end > body.end:
            for scanned in build_parts(self.path, self.kind, ByteRange(body.end, end), stem, workers):
                self._rename_parts(scanned, body, build)
                body.add(scanned)
        state = State(build=build, made_of=identity, body=body)
        if end is not None and end < identity.size:
            tail = read_range(
                self.path, self.kind, ByteRange(end, identity.size), self.folder / f"new-{build}-tail"
            )
            self._rename_parts(tail, body, f"{build}t")
            tail.listed = [msgspec.structs.replace(bad, line=bad.line + body.lines) for bad in tail.listed]
            state.tail = tail
        state.has_own_keys = self._have_own_keys(base, state)
        state.head_digest, state.tail_digest = self._digests(body.end)
        return state

    def _rename_parts(self, scanned: Scanned, before: Scanned, build: str) -> None:
        """Rename parts so that their names contain their first row and line."""
        row = before.rows
        for part in scanned.parts:
            name = part_name(row, before.lines, build)
            (self.folder / part.name).replace(self.folder / name)
            part.name = name
            row += part.rows

    def _have_own_keys(self, base: State, state: State) -> bool:
        """Whether every rollout has a unique key. Only parts whose key ranges may overlap those of new parts are read again."""
        if not base.has_own_keys and base.tail is None:
            return False
        parts = state.parts()
        spans = [part.keys for part in parts if part.keys is not None]
        if len(spans) < len(parts):
            return False
        doubtful = overlapping(spans, len(base.body.parts) if base.has_own_keys else 0)
        return not doubtful or have_own_keys([self.folder / parts[number].name for number in doubtful])

    def _sweep(self, state: State) -> None:
        """Remove unlisted parts, unless a reader may be using them."""
        with self._locked("use.lock", fcntl.LOCK_SH) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            _remove_unnamed(self.folder, state.parts())


def _remove_unnamed(folder: Path, parts: list[PartFile]) -> None:
    """Remove unlisted parts and the remains of interrupted builds."""
    named = {part.name for part in parts}
    for path in folder.iterdir():
        if path.name not in named and _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def allow_open_files(count: int) -> None:
    """Raise this process's soft limit of open files as far as allowed: an index of many shards holds one lock per shard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE,
                (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
            )


# Where an index may be


def trusted_folder(folder: Path, path: Path) -> Path:
    """The folder beside the file if it is writable and trusted, else a private folder of this user."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o775)
        if os.access(folder, os.W_OK) and _is_trusted(folder, path):
            return folder
    except OSError:
        pass
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return _private_folder() / name


def _is_trusted(folder: Path, path: Path) -> bool:
    """Whether it is a real folder, not world-writable, and owned by us, by root, or by the owner of the rollouts or their folder."""
    status = folder.lstat()
    owners = {os.getuid(), 0, path.stat().st_uid, path.parent.stat().st_uid}
    return stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_IWOTH and status.st_uid in owners


def _private_folder() -> Path:
    """A folder that only this user can read and write: in the user's cache, else among the temporary files."""
    cache = os.environ.get("XDG_CACHE_HOME") or f"{os.path.expanduser('~')}/.cache"  # noqa: PTH111  (never raises)
    for folder in (
        Path(cache) / "rollforge" / "index",
        Path(tempfile.gettempdir()) / f"rollforge-index-{os.getuid()}",
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = folder.lstat()
        except OSError:
            continue
        is_private = (
            stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        )
        if is_private and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="rollforge-index-"))
