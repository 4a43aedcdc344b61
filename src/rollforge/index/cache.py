"""This module keeps the Parquet parts of one file up to date: built once, extended when the file grows, else made anew.

`state.json` names the parts that count and says which bytes of which file they were made from. It is replaced in one step, so a
reader sees the old index or the new one; builders take turns; a part no state names is swept by the next builder that finds
nobody reading. Deleting the folder costs a rebuild and nothing else.

Where several read the text, the parts are written while the index is used already: one core would be idle else.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import msgspec

from rollforge.errors import DataError
from rollforge.index.ahead import beside
from rollforge.index.fresh import FreshParts, Room
from rollforge.index.key_spans import meeting
from rollforge.index.kinds import Kind
from rollforge.index.lines import is_compressed
from rollforge.index.ranges import last_line_start, readers
from rollforge.index.scanned import Scanned
from rollforge.index.state import VERSION, FileId, State, Tail, file_id

if TYPE_CHECKING:
    import pyarrow as pa

PROBE = 64 << 10
"""Bytes at the head, and before the end of what was indexed, that must be unchanged for the file to count as grown."""

READ_WHOLE = 32 << 20
"""Up to so many bytes, all of them must be; of more, blocks all over the file are looked at."""

BLOCK, BLOCKS = 4 << 10, 64
"""How large those blocks are, and how many."""


class OpenCache:
    """An index that stays as it is until it is closed."""

    def __init__(
        self, state: State, reading: Callable[[], IO[str]], tables: dict[str, pa.Table] | None = None
    ) -> None:
        """`reading` waits until the index is on disk, and returns what keeps it there while it is open."""
        self.state = state
        self.tables = {} if tables is None else tables
        """What parts hold that were just made, by their names in `state`; a part that has no table here is on disk."""
        self._reading = reading
        self._process = os.getpid()

    def settle(self) -> None:
        """Wait until all of it is on disk."""
        if os.getpid() == self._process:  # in a fork of it nobody writes
            self._reading()

    def close(self) -> None:
        """Let go of it, once it is."""
        if os.getpid() == self._process:
            self._reading().close()
        self.tables.clear()


class Cache:
    """The folder of one file's parts."""

    def __init__(self, path: Path, kind: Kind, folder: Path) -> None:
        self.path = path
        self.kind: Kind = kind
        # A file and its packed copy share a folder, but not an index.
        packed = path.suffix if is_compressed(path) else ""
        self.folder = _writable(folder, path) / f"{kind}{packed}"

    def is_fresh(self) -> bool:
        """Whether the index is up to date."""
        return self._load_fresh() is not None

    def open(self, workers: int | None = None, room: Room | None = None) -> OpenCache:
        """The index, after building or extending whatever is not up to date; `room` is for what is then at hand."""
        with self._removal_told():
            if (found := self._open_fresh()) is not None:
                return found
            building = self._locked("build.lock", fcntl.LOCK_EX)
            try:
                return self._build(building, workers, room or Room(0))
            except BaseException:
                _unlock(building)
                raise

    def _open_fresh(self) -> OpenCache | None:
        """The index, when it is up to date."""
        reading = self._reading()
        state = self._load_fresh()
        if state is not None:
            return OpenCache(state, lambda: reading)
        reading.close()  # nobody who builds is to find somebody reading
        return None

    def _build(self, building: IO[str], workers: int | None, room: Room) -> OpenCache:
        # Another command may have built it while this one waited.
        if (ready := self._open_fresh()) is not None:
            _unlock(building)
            return ready
        found, base = file_id(self.path), self._load()
        if base is None or not self._has_grown(base, found):
            base = State(build="", made_of=found)
        fresh = FreshParts(room, may_wait=readers(found.size - base.end, workers) > 1)
        state = self._extend(base, found, workers, fresh)

        def finish() -> IO[str]:
            try:
                with self._removal_told():
                    fresh.write()
                    self._save(state)
                    self._sweep(state)
                    return self._reading()  # before another builder may sweep
            finally:
                _unlock(building)

        if fresh.have_to_wait():
            wait = beside(finish, "rollforge-writing", outlives_us=True)
            return OpenCache(state, wait, fresh.tables)
        reading = finish()
        return OpenCache(state, lambda: reading, fresh.tables)

    @contextmanager
    def _removal_told(self) -> Iterator[None]:
        """Say what is missing: the file, or the folder of its index."""
        try:
            yield
        except FileNotFoundError as error:
            what = "it" if not self.path.exists() else self.folder.parent
            raise DataError(
                f"{self.path}: {what} was removed while it was read", hint="run the command again"
            ) from error

    def _reading(self) -> IO[str]:
        """Parts are not swept while this is open."""
        return self._locked("use.lock", fcntl.LOCK_SH)

    def _locked(self, name: str, how: int) -> IO[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / name).open("a")
        try:
            fcntl.flock(file, how)
        except BaseException:
            file.close()
            raise
        return file

    def _load_fresh(self) -> State | None:
        """The state, when the index is up to date."""
        state = self._load()
        return state if state is not None and state.made_of == file_id(self.path) else None

    def _load(self) -> State | None:
        try:
            state = msgspec.json.decode((self.folder / "state.json").read_bytes(), type=State)
        except (OSError, msgspec.DecodeError):
            return None
        is_whole = state.version == VERSION and all(
            _has_bytes(f"{self.folder}/{part}") for part in state.all_parts()
        )
        return state if is_whole else None

    def _save(self, state: State) -> None:
        partial = self.folder / f"state-{uuid4().hex}.tmp"
        partial.write_bytes(msgspec.json.encode(state))
        partial.replace(self.folder / "state.json")

    def _has_grown(self, state: State, found: FileId) -> bool:
        """Whether what was indexed stands there as it was, and only more follows (or a last line that was torn is gone)."""
        was = state.made_of
        if (
            is_compressed(self.path)
            or found.inode != was.inode
            or found.size == was.size
            or found.size < state.end
        ):
            return False
        return self._digests(state.end) == (state.head_digest, state.tail_digest)

    def _digests(self, end: int) -> tuple[str, str]:
        if is_compressed(self.path):
            return "", ""
        import hashlib  # it brings all of OpenSSL, and reading need not wait for that

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

    def _extend(self, base: State, found: FileId, workers: int | None, fresh: FreshParts) -> State:
        """`base` and what follows it in the file."""
        # What reads text, which most commands find read.
        from rollforge.index.parallel import scan_parallel
        from rollforge.index.scan import scan_range

        build = uuid4().hex[:12]
        stem = self.folder / f"new-{build}"
        state = msgspec.structs.replace(
            base, build=build, made_of=found, tail=None,
            parts=list(base.parts), keys=list(base.keys), listed=list(base.listed), numbers=dict(base.numbers), texts=dict(base.texts),
        )  # fmt: skip
        whole_end = None if is_compressed(self.path) else self._whole_end(found.size)
        for scanned in scan_parallel(self.path, self.kind, base.end, whole_end, stem, workers, fresh):
            self._add(state, scanned, build, fresh)
        if whole_end is not None and whole_end < found.size:
            tail = scan_range(self.path, self.kind, whole_end, found.size, Path(f"{stem}-tail"), fresh)
            parts = self._file_parts(tail, state, f"{build}-tail", fresh)
            _shift(tail, state.lines)
            state.tail = Tail(scanned=tail, parts=parts)
        state.has_plain_keys = self._has_plain_keys(base, state, fresh)
        state.head_digest, state.tail_digest = self._digests(state.end)
        return state

    def _whole_end(self, size: int) -> int:
        with self.path.open("rb", buffering=0) as file:
            return last_line_start(file, size)

    def _has_plain_keys(self, base: State, state: State, fresh: FreshParts) -> bool:
        """Whether every rollout has a key of its own: only parts that may share keys with new ones are read again."""
        if not base.has_plain_keys and base.tail is None:
            return False
        spans = [*state.keys, *(state.tail.keys() if state.tail else ())]
        known = [span for span in spans if span is not None]
        if len(known) < len(spans):
            return False
        doubtful = meeting(known, len(base.parts) if base.has_plain_keys else 0)
        if not doubtful:
            return True
        from rollforge.index.keys import have_own_keys

        fresh.write()
        return have_own_keys([self.folder / state.all_parts()[place] for place in doubtful])

    def _add(self, state: State, scanned: Scanned, build: str, fresh: FreshParts) -> None:
        state.parts += self._file_parts(scanned, state, build, fresh)
        state.keys += [part.keys for part in scanned.parts]
        _shift(scanned, state.lines)
        state.rows += scanned.rows
        state.lines += scanned.lines
        state.end = max(state.end, scanned.end)
        state.rejected += scanned.rejected
        state.noted += scanned.noted
        state.listed = (state.listed + scanned.listed)[:10_000]
        for known, found in ((state.numbers, scanned.numbers), (state.texts, scanned.texts)):
            for name, count in found.items():
                known[name] = known.get(name, 0) + count

    def _file_parts(self, scanned: Scanned, state: State, build: str, fresh: FreshParts) -> list[str]:
        """Move the parts to where their path says which row and line they start at."""
        filed = []
        for part in scanned.parts:
            name = f"row0={state.rows + part.first_row}/line0={state.lines}/{build}.parquet"
            fresh.move(part.path, self.folder / name, name)
            filed.append(name)
        return filed

    def _sweep(self, state: State) -> None:
        """Remove parts that no state names, unless somebody may be reading them."""
        named = set(state.all_parts())
        with (self.folder / "use.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            _remove_unnamed(str(self.folder), named)


def _unlock(file: IO[str]) -> None:
    """Let others build; closing the file alone would not, while a fork of this process has it open."""
    if not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


def _remove_unnamed(folder: str, named: set[str]) -> None:
    """Remove the parts that are not named, what a build that was stopped left behind, and folders that are empty then."""
    for path, _, files in os.walk(folder, topdown=False):
        below = path[len(folder) + 1 :]
        is_of_parts = below.startswith("row0=")
        for name in files:
            is_part = is_of_parts and f"{below}/{name}" not in named
            if is_part or (not below and name.startswith(("new-", "state-"))):
                Path(path, name).unlink(missing_ok=True)
        if is_of_parts and not os.listdir(path):  # noqa: PTH208  (a folder per part: a Path takes longer)
            Path(path).rmdir()


def _has_bytes(path: str) -> bool:
    """Whether the part is there; a machine that stopped may leave it empty."""
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116  (a run may have thousands, and every command looks)
    except OSError:
        return False


def _shift(scanned: Scanned, lines: int) -> None:
    """Line numbers of a range become line numbers of the file."""
    for bad in scanned.listed:
        bad.line += lines


def _writable(folder: Path, path: Path) -> Path:
    """The folder, or one for temporary files when the file lies where nothing may be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    import hashlib
    import tempfile

    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rollforge-index-{os.getuid()}" / digest
