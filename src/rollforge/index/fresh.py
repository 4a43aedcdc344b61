"""This module holds the tables of parts that were just made, for whoever reads them next, and writes them to where they stay.

Reading them back would take longer than most of what commands do with them. Parts that are many are not held: they are written as
they are made. Neither numpy nor Arrow is loaded here, because what reads text begins without them.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BUDGET = 64 << 20
"""Bytes of tables that are held for one run, as 150,000 rollouts have."""


class Room:
    """Memory for the tables of all files of a run."""

    def __init__(self, size: int) -> None:
        self.left = size


class FreshParts:
    """The new parts of one file's index, to which several threads may add; once there is no room for all of them, none is held."""

    def __init__(self, room: Room, *, may_wait: bool) -> None:
        """With `may_wait`, parts that are held are written when `write` is called; else at once."""
        self.tables: dict[str, pa.Table] = {}
        """What the parts hold that are held and were moved, by name."""
        self._may_wait = may_wait
        self._room = room
        self._size = 0
        self._is_held = True
        self._unmoved: dict[str, pa.Table] = {}
        self._unwritten: dict[str, pa.Table] = {}
        self._lock = Lock()

    def add(self, path: str, table: pa.Table) -> None:
        """One more part, which is to lie there."""
        with self._lock:
            if self._is_held:
                self._hold(path, table)
            if path in self._unwritten:
                return
        _write(path, table)

    def _hold(self, path: str, table: pa.Table) -> None:
        if table.nbytes > self._room.left:
            self._let_go()
            return
        self._room.left -= table.nbytes
        self._size += table.nbytes
        self._unmoved[path] = table
        if self._may_wait:
            self._unwritten[path] = table

    def move(self, path: str, target: Path, name: str) -> None:
        """Let a part lie elsewhere, under a name of its own."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if path in self._unmoved:
                self.tables[name] = self._unmoved.pop(path)
            if path in self._unwritten:
                self._unwritten[str(target)] = self._unwritten.pop(path)
                return
        Path(path).replace(target)

    def write(self) -> None:
        """Write those that wait."""
        with self._lock:
            self._write_waiting()

    def have_to_wait(self) -> bool:
        """Whether some are not written yet."""
        return bool(self._unwritten)

    def _let_go(self) -> None:
        self._is_held = False
        self._room.left += self._size
        self.tables.clear()
        self._unmoved.clear()
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._unwritten:
            _write(*self._unwritten.popitem())


def _write(path: str, table: pa.Table) -> None:
    from rollforge.index import part_tables

    part_tables.write(table, path)
