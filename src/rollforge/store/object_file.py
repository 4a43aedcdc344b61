"""A file of lines in a bucket, written by one process: each commit is one immutable object, created once.

Nothing is on the local disk. Lines are acknowledged when their object exists.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from rollforge.store.durable import DurableFile
from rollforge.store.object_lines import pack, piece_name, unpacking, whole_name
from rollforge.store.objects import ObjectFolder
from rollforge.store.shipping import SHIPPED_DELAY_S

CONDENSED_BYTES = 256 << 20
"""Files up to this size are finally condensed to one object."""


class ObjectFile(DurableFile):
    """An append-only file of lines as objects."""

    advice = "see that the bucket can be reached, then run the same command again"

    def __init__(self, objects: ObjectFolder, name: str, *, shown: Path) -> None:
        super().__init__(shown, delay_s=SHIPPED_DELAY_S)
        self._delay_s = SHIPPED_DELAY_S
        self._copy = None
        self._objects = objects
        self._name = name
        self._pieces = 0
        self._digest = hashlib.sha256()
        self.length = 0
        """Bytes of lines in the bucket."""
        self.is_certain = True
        """False after a failed commit, whose object may nevertheless exist."""

    @property
    def sha256(self) -> str:
        """Digest of the lines in the bucket."""
        return self._digest.hexdigest()

    def _open(self) -> None:
        """Do nothing: an epoch starts without objects."""

    def _release(self) -> None:
        """Do nothing: no file is open."""

    def _commit(self, lines: list[bytes]) -> None:
        lines.append(b"")  # so that the last line gets its newline too
        whole = b"\n".join(lines)
        started = time.perf_counter()
        self.is_certain = False
        name = piece_name(self._name, self._pieces + 1)
        if self._objects.create(name, pack(whole)) is None:
            raise OSError(f"{self._objects.url}/{name}: another process writes to this shard")
        self._pieces += 1
        self._digest.update(whole)
        self.length += len(whole)
        self.is_certain = True
        self.bytes_written += len(whole)
        self.commits += 1
        self.commit_s += time.perf_counter() - started

    def condense(self) -> None:
        """Replace all pieces by one object, so that readers fetch one object instead of hundreds."""
        if self._pieces < 2 or self.length > CONDENSED_BYTES:
            return
        names = [piece_name(self._name, number) for number in range(1, self._pieces + 1)]
        read = [data for data in self._objects.read_many(names) if data is not None]
        lines = b"".join(unpacking(data).read(self.length + 1) for data in read)
        if len(read) < len(names) or len(lines) != self.length:
            return  # condensed before
        if self._objects.create(whole_name(self._name, self._pieces), pack(lines)) is not None:
            self._objects.delete(*names)
