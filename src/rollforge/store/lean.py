"""A working copy without the rollouts' text, for commands that need only a few lines: `show`, `query`.

The index is downloaded, and requested lines are fetched as byte ranges, or as the objects that contain them. The copy has a
separate folder, so that no other command mistakes a placeholder for a file. A file without an index in the bucket is downloaded
completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rollforge.errors import DataError
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.store.absent import register
from rollforge.store.atomic import make_directory
from rollforge.store.bucket import WorkingCopy
from rollforge.store.bundle_names import bundle_name, source_of
from rollforge.store.files import file_stem
from rollforge.store.object_lines import is_piece, unpacking
from rollforge.store.objects import ObjectFolder
from rollforge.store.reading import UNREADABLE

CACHED_OBJECTS = 8
"""Unpacked objects cached in memory, for adjacent lines."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Byte range of a file in one object."""

    name: str
    start: int
    length: int


class LeanCopy(WorkingCopy):
    """A working copy with placeholders for rollouts whose index is in the bucket."""

    variant = "lean"

    def __init__(self, url: str, *, beginning: str = "", version: int) -> None:
        super().__init__(url, beginning=beginning)
        self.version = version
        """Version of the index; bundles of other versions are unusable."""

    def leaves_out(self, name: str, objects: list[str]) -> bool:
        """Whether a rollouts file is not needed locally; if so, creates its placeholder and registers its remote text."""
        if not name.endswith("rollouts.jsonl"):
            return False
        tags = {one: self.listed[one].tag for one in objects[-1:]}
        bundle = bundle_name(_index_folder(name), "rollouts", f"{self.version} {source_of(objects, tags)}")
        data = self.objects.read(bundle) if bundle in self.listed else None
        if data is None:
            return False
        try:
            head = decode_msgpack(data, _Head)
        except UNREADABLE:
            return False
        if head.spans is None:
            return False
        path = self.folder / name
        make_directory(path.parent)
        with path.open("wb") as file:
            file.truncate(head.size)
        register(path, TextInBucket(self.objects, head.spans))
        return True


def _index_folder(name: str) -> str:
    """Folder of a rollouts file's index, relative to the run."""
    folder, _, last = name.rpartition("/")
    if folder.startswith("shards/"):
        return f"index/{folder.removeprefix('shards/')}"
    return f"{folder}/" * bool(folder) + f"{file_stem(Path(last))}_index"


class _Head(msgspec.Struct, frozen=True):
    """The fields of a bundle that a lean copy needs."""

    size: int
    spans: list[Span] | None


class TextInBucket:
    """The text of one file, stored as objects in a bucket."""

    def __init__(self, objects: ObjectFolder, spans: list[Span]) -> None:
        self._objects = objects
        self._spans = spans
        self._held: dict[str, bytes] = {}
        self.fetched = 0
        """Number of bytes fetched so far."""

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        for offset, length in spans:
            yield b"".join(self._pieces(offset, offset + length))

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        for span in self._spans:
            if span.start < end and start < span.start + span.length:
                first, last = max(start - span.start, 0), min(end - span.start, span.length)
                yield self._part(span, first, last)

    def _part(self, span: Span, first: int, last: int) -> bytes:
        if not is_piece(span.name):
            data = self._objects.read_range(span.name, first, last)
            self.fetched += len(data)
            return data
        if span.name not in self._held:
            packed = self._objects.read(span.name)
            if packed is None:
                raise DataError(
                    f"{self._objects.url}/{span.name}: it was replaced while it was read",
                    hint="run the command again",
                )
            self.fetched += len(packed)
            if len(self._held) >= CACHED_OBJECTS:
                self._held.pop(next(iter(self._held)))
            self._held[span.name] = unpacking(packed).read(span.length)
        return self._held[span.name][first:last]
