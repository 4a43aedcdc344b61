"""Record of an index build: its valid parts, their contents, and the identity of the file.

It is stored as JSON beside the parts, with a checksum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import xxhash

from rollforge.index.schema import Kind
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store import UNREADABLE

if TYPE_CHECKING:  # the state is read without Arrow
    import pyarrow.parquet as pq

VERSION = 11
"""Increased when columns, hashes or files change: an index of another version is rebuilt."""

MAX_LISTED = 10_000
"""Most bad lines of a file that are listed; all of them are counted."""


class KeySpan(msgspec.Struct, frozen=True):
    """Range of keys in a set of rows that all have unique keys."""

    first: tuple[int, int]
    """(task, rollout)"""
    last: tuple[int, int]
    least_rollout: int
    largest_rollout: int

    def overlaps(self, other: KeySpan) -> bool:
        """Whether both ranges may contain a common key."""
        return (
            self.first <= other.last
            and other.first <= self.last
            and self.least_rollout <= other.largest_rollout
            and other.least_rollout <= self.largest_rollout
        )


def overlapping(spans: Sequence[KeySpan], disjoint_count: int) -> list[int]:
    """Positions of spans that overlap another one. The first `disjoint_count` spans are known not to overlap each other."""
    overlaps: set[int] = set()
    for position in range(disjoint_count, len(spans)):
        others = [other for other in range(position) if spans[other].overlaps(spans[position])]
        if others:
            overlaps |= {position, *others}
    return sorted(overlaps)


class BadLineAt(msgspec.Struct, kw_only=True):
    """Location of a line that is not a row, or (with `is_kept`) of an irregular row."""

    file: str
    line: int
    offset: int
    reason: str
    is_kept: bool = False
    """Whether the row counts; then only the data named in the reason is missing."""


class PartFile(msgspec.Struct):
    """One Parquet file of an index."""

    name: str
    """File name in the folder, `ROW-LINE-BUILD.parquet`: the first row and the number of preceding lines."""
    rows: int
    size: int
    checksum: str
    """xxh3 of its bytes."""
    keys: KeySpan | None = None
    """Key range of rollouts, if all rows have unique keys."""


class Scanned(msgspec.Struct, kw_only=True):
    """Contents of a range of a file."""

    parts: list[PartFile] = []
    rows: int = 0
    lines: int = 0
    end: int = 0
    """The offset after the last line."""
    rejected: int = 0
    noted: int = 0
    listed: list[BadLineAt] = []
    numbers: dict[str, int] = {}
    """Discovered number columns in order of appearance → number of rows that have them."""
    texts: dict[str, int] = {}
    typed: int | None = None
    """Number of typed rollouts (`conversations/typed_rows.py`); None if an earlier version did not count them."""

    def add(self, other: Scanned) -> None:
        """Append the following range, whose lines are numbered from its own start."""
        self.parts += other.parts
        self.listed += [msgspec.structs.replace(bad, line=bad.line + self.lines) for bad in other.listed]
        del self.listed[MAX_LISTED:]
        self.rows += other.rows
        self.lines += other.lines
        self.end = max(self.end, other.end)
        self.rejected += other.rejected
        self.noted += other.noted
        self.typed = None if self.typed is None or other.typed is None else self.typed + other.typed
        for counts, added in ((self.numbers, other.numbers), (self.texts, other.texts)):
            for name, count in added.items():
                counts[name] = counts.get(name, 0) + count


class FileId(msgspec.Struct, frozen=True):
    """Identity that differs after any change of a file: writing moves `changed_ns` even if other times are reset."""

    size: int
    inode: int
    written_ns: int
    changed_ns: int


def file_id(path: Path, length: int | None = None) -> FileId:
    """Identity of the current file. Its first `length` bytes do not change, even if another process appends."""
    stat = path.stat()
    if length is not None:
        return FileId(length, stat.st_ino, 0, 0)
    return FileId(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)


class State(msgspec.Struct, kw_only=True):
    """What was indexed, and from which file."""

    version: int = VERSION
    build: str
    """Unique id of the build; data derived from an index refers to it."""
    made_of: FileId
    head_digest: str = ""
    tail_digest: str = ""
    has_own_keys: bool = True
    """Whether every rollout has a (task, rollout) key that is unique in the file."""
    body: Scanned
    """Contents of the complete lines."""
    tail: Scanned | None = None
    """A last line without a newline: it counts, but is read again when the file grows."""

    def ranges(self) -> list[Scanned]:
        """The complete lines and the unfinished last one."""
        return [self.body] if self.tail is None else [self.body, self.tail]

    def parts(self) -> list[PartFile]:
        """The parts in file order."""
        return [part for scanned in self.ranges() for part in scanned.parts]

    def count(self, name: str) -> int:
        """Sum of `rejected`, `noted`, `rows` or `lines`."""
        return sum(int(getattr(scanned, name)) for scanned in self.ranges())

    @property
    def has_typed(self) -> bool:
        """Whether some line may be a typed rollout."""
        return any(scanned.typed != 0 for scanned in self.ranges())

    def listed(self) -> list[BadLineAt]:
        """Bad lines in file order."""
        return [bad for scanned in self.ranges() for bad in scanned.listed]

    def columns(self, kind: str) -> dict[str, int]:
        """Discovered `numbers` or `texts` → number of rows that have them."""
        counts: dict[str, int] = {}
        for scanned in self.ranges():
            for name, count in getattr(scanned, kind).items():
                counts[name] = counts.get(name, 0) + count
        return counts


class IndexedFile(msgspec.Struct):
    """One file of a run and its index."""

    file_no: int
    """Number of the run's rollouts file that it is, or belongs to."""
    path: Path
    folder: Path
    state: State
    first_row: int
    """Number of rows in the files before it."""
    footers: dict[str, pq.FileMetaData] = {}
    """Parquet footers of its parts by name, cached, because parsing them is half the cost of reading a column."""


class IndexedFiles:
    """The indexed files of a run, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[Kind, list[IndexedFile]] = {
            "rollouts": [], "tasks": [], "failures": [], "verdicts": [],
        }  # fmt: skip

    def add(self, kind: Kind, file_no: int, path: Path, folder: Path, state: State) -> None:
        """Add a file; its rows are numbered after those of earlier files."""
        before = self.by_kind[kind]
        first_row = before[-1].first_row + before[-1].state.count("rows") if before else 0
        before.append(IndexedFile(file_no, path, folder, state, first_row))

    def count(self, kind: Kind, name: str = "rows") -> int:
        """Sum of `rows`, `rejected` or `noted` over all files of a kind."""
        return sum(file.state.count(name) for file in self.by_kind[kind])

    def discovered(self, kind: Kind, columns: str) -> dict[str, int]:
        """Discovered `numbers` or `texts` of a kind → number of rows that have them."""
        counts: dict[str, int] = {}
        for file in self.by_kind[kind]:
            for name, count in file.state.columns(columns).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def folders(self) -> list[Path]:
        """Index folders, that of the rollouts first; a file in an unwritable folder has a separate one."""
        return list(dict.fromkeys(file.folder.parent for files in self.by_kind.values() for file in files))

    def digest(self) -> str:
        """A digest that differs whenever any file was reindexed."""
        builds = [
            (kind, file.file_no, file.state.build) for kind, files in self.by_kind.items() for file in files
        ]
        return hashlib.sha256(msgspec.json.encode(builds)).hexdigest()[:16]


# Checked files: JSON under a checksum, so that damage is noticed and never believed


class _Checked(msgspec.Struct):
    checksum: str
    content: msgspec.Raw


Record = TypeVar("Record")


def checksum(data: bytes | memoryview) -> str:
    """xxh3 of some bytes: detects damage, not tampering."""
    return str(xxhash.xxh3_64_hexdigest(data))


def encode_checked(record: object) -> bytes:
    """A record as JSON with its checksum."""
    content = msgspec.json.encode(record)
    return msgspec.json.encode(_Checked(checksum(content), msgspec.Raw(content)))


def read_checked(path: Path, kind: type[Record]) -> Record | None:
    """Read a record; None if the file is missing, damaged or in another format."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            checked = decode_json(file.read(), _Checked)
        if checksum(bytes(checked.content)) != checked.checksum:
            return None
        return decode_json(checked.content, kind)
    except (OSError, *UNREADABLE):
        return None
