"""This module says what an index was made of and what it holds, in the shape it is stored beside the parts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollforge.index.key_spans import KeySpan
from rollforge.index.scanned import BadLineAt, Scanned

VERSION = 9
"""Raised when the columns change: an index of another version is made anew."""


class Tail(msgspec.Struct, kw_only=True):
    """A last line without a newline: it counts, but is read again once the file has grown."""

    scanned: Scanned
    parts: list[str]

    def keys(self) -> list[KeySpan | None]:
        """Of each part."""
        return [part.keys for part in self.scanned.parts]


class FileId(msgspec.Struct, frozen=True):
    """What tells a file from itself after any change: writing moves `changed_ns` even where the other two are put back."""

    size: int
    inode: int
    written_ns: int
    changed_ns: int


def file_id(path: Path) -> FileId:
    """Of the file as it is now."""
    stat = path.stat()
    return FileId(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)


class State(msgspec.Struct, kw_only=True):
    """What was indexed."""

    version: int = VERSION
    build: str
    """Differs for every build: what is derived from an index is keyed to it."""
    made_of: FileId
    end: int = 0
    """Bytes of whole lines indexed."""
    head_digest: str = ""
    tail_digest: str = ""
    rows: int = 0
    lines: int = 0
    parts: list[str] = []
    """Paths below the folder, in the order of the file."""
    keys: list[KeySpan | None] = []
    """Of each part: where no two spans meet, every rollout has a key of its own."""
    has_plain_keys: bool = True
    """Every rollout has a key of its own, with the unfinished last line's."""
    rejected: int = 0
    noted: int = 0
    listed: list[BadLineAt] = []
    numbers: dict[str, int] = {}
    texts: dict[str, int] = {}
    tail: Tail | None = None

    def all_parts(self) -> list[str]:
        """The parts, with the unfinished last line's."""
        return [*self.parts, *(self.tail.parts if self.tail else ())]

    def counts(self, name: str) -> int:
        """`rejected`, `noted`, `rows` or `lines`, with the unfinished last line's."""
        return int(getattr(self, name)) + (int(getattr(self.tail.scanned, name)) if self.tail else 0)

    def all_listed(self) -> list[BadLineAt]:
        """Bad lines, in the order of the file."""
        return [*self.listed, *(self.tail.scanned.listed if self.tail else ())]

    def columns(self, kind: str) -> dict[str, int]:
        """Discovered `numbers` or `texts`, each with how many rows have it."""
        found = dict(getattr(self, kind))
        for name, count in (getattr(self.tail.scanned, kind) if self.tail else {}).items():
            found[name] = found.get(name, 0) + count
        return found
