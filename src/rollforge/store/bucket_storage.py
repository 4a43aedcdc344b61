"""The shards of a run in a bucket: ownership by create-only objects, lines as immutable objects that count from their creation.

A host that takes over a shard needs only the bucket: it reads the objects of earlier epochs. Shards have no files on the local
disk.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rollforge.store.object_lines import PARTS, reading_order, unpacking
from rollforge.store.objects import ObjectFolder
from rollforge.store.reading import BLOCK_BYTES, bounded_lines
from rollforge.store.shard_storage import Counted, DiskStorage, ShardStorage
from rollforge.store.shipping import address_of
from rollforge.text_safety.redaction import SECRETS

if TYPE_CHECKING:
    from rollforge.store.durable import DurableFile
    from rollforge.store.object_file import ObjectFile

CLOCK_S = 300.0
"""How long a reading of the store's clock is used; in that time clocks drift apart only by milliseconds."""
FEW_TRIES = 3
"""Tries for heartbeats: the next one follows in a second, and a retry would block a thread."""


def storage_of(shards: Path) -> ShardStorage:
    """Storage of a run's shards: its folder on disk, or the bucket of which that folder is a working copy."""
    url = address_of(shards.parent)
    return DiskStorage(shards) if url is None else BucketStorage(ObjectFolder(url), shards.name, shards)


class BucketStorage:
    """The shards folder of a run in a bucket."""

    def __init__(self, objects: ObjectFolder, folder: str, shown: Path) -> None:
        self._objects = objects
        self._folder = folder
        self._shown = shown
        """Name of the folder in messages."""
        self._known: dict[str, bytes] = {}
        """Cache of immutable records."""
        self._written: dict[str, ObjectFile] = {}
        """Files of epochs that this process owns, whose valid contents it knows."""
        self._clock: tuple[datetime, float] | None = None

    def create(self, name: str, data: bytes) -> bool:
        made = self._objects.create(self._name(name), SECRETS.data(data)) is not None
        if made:
            self._known[name] = data
        return made

    def read(self, name: str) -> bytes | None:
        if name in self._known:
            return self._known[name]
        data = self._objects.read(self._name(name), tries=FEW_TRIES)
        if data is not None and name.endswith((".owner", ".end", "plan.json")):
            self._known[name] = data
        return data

    def replace(self, name: str, data: bytes) -> None:
        self._objects.put(self._name(name), SECRETS.data(data), tries=FEW_TRIES)

    def names(self, folder: str) -> list[str]:
        return self._objects.names(self._name(folder))

    def age_s(self, name: str) -> float | None:
        written = self._objects.modified(self._name(name))
        return None if written is None else max(0.0, (self._now() - written).total_seconds())

    def rows(self, name: str) -> DurableFile:
        from rollforge.store.object_file import ObjectFile  # readers do without asyncio

        file = self._written[name] = ObjectFile(self._objects, self._name(name), shown=self._shown / name)
        return file

    def counted(self, name: str) -> Counted | None:
        """Valid bytes: for this process's own files from memory, else the pieces that exist now."""
        file = self._written.get(name)
        if file is not None and file.is_certain:
            file.condense()
            return Counted(name=name, length=file.length, sha256=file.sha256) if file.length else None
        length, digest = 0, hashlib.sha256()
        for piece in self._pieces(name):
            while lines := piece.read(BLOCK_BYTES):
                length += len(lines)
                digest.update(lines)
        return Counted(name=name, length=length, sha256=digest.hexdigest()) if length else None

    def lines(self, counted: Counted) -> Iterator[bytes]:
        left = counted.length
        for piece in self._pieces(counted.name):
            yield from bounded_lines(piece, left)
            left -= piece.tell()
            if left <= 0:
                return

    def _pieces(self, name: str) -> Iterator[BinaryIO]:
        """The lines of all pieces, in order. An owner may replace them by a whole while they are read: then again from there."""
        for is_last in (False, True):
            folder = f"{self._name(name)}{PARTS}"
            order, _ = reading_order(one.name for one in self._objects.walk(folder))
            read = list(self._objects.read_many(order))
            if None not in read:
                yield from (unpacking(data) for data in read if data is not None)
                return
            if is_last:
                raise OSError(f"{self._shown / name}: its objects change while they are read")

    def _now(self) -> datetime:
        if self._clock is None or time.monotonic() - self._clock[1] > CLOCK_S:
            self._clock = self._objects.now(), time.monotonic()
        then, at = self._clock
        return then + timedelta(seconds=time.monotonic() - at)

    def _name(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder
