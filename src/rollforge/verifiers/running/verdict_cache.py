"""Verdicts on disk, across runs: one SQLite file, safe for several processes at once.

The cache may lose entries but never returns a wrong one. An unwritable disk costs cache hits, not the run. Failures are not
stored.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.records import Verdict

logger = logging.getLogger(__name__)

FLUSH_ROWS = 256
FLUSH_SECONDS = 1.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Verdict).decode


class VerdictCache:
    """Verdicts by key (see `answer_keys`); writes are batched, a few hundred at a time."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / "verdicts.sqlite"
        self._waiting: dict[bytes, Verdict] = {}
        self._flushed_at = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = _open(self.path)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"{self.path}: cannot be used as a cache of verdicts: {error}",
                hint="give --cache another directory, or delete the file: a cache only saves time",
            ) from error

    def get(self, key: bytes) -> Verdict | None:
        """The verdict under the key, also if another process stored it just now."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting
        try:
            row = self._database.execute(
                "SELECT rest, verdict FROM verdicts WHERE id = ?", (_number(key),)
            ).fetchone()
            return _decode(row[1]) if row is not None and row[0] == key[8:] else None
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("%s: cannot read: %s", self.path, error)
            return None

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Store a verdict; it is on disk within about a second, or after `close`."""
        self._waiting[key] = verdict
        if len(self._waiting) >= FLUSH_ROWS or time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write pending verdicts in one transaction."""
        rows = [(_number(key), key[8:], _encode(verdict)) for key, verdict in self._waiting.items()]
        self._waiting.clear()
        self._flushed_at = time.monotonic()
        if not rows:
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            logger.warning("%s: %d verdicts were not kept: %s", self.path, len(rows), error)
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def close(self) -> None:
        """Write pending verdicts and close the file."""
        self.flush()
        self._database.close()


def _open(path: Path, patience_s: float = 10.0) -> sqlite3.Connection:
    """Open or create the database. Two processes that create it concurrently lock each other out briefly."""
    database = sqlite3.connect(path, timeout=5, isolation_level=None)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (id INTEGER PRIMARY KEY, rest BLOB NOT NULL, verdict BLOB NOT NULL)"
            )
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                database.close()
                raise
            time.sleep(0.02)
        except sqlite3.Error:
            database.close()
            raise
        else:
            return database


def _number(key: bytes) -> int:
    """Half of the key as integer primary key, SQLite's fastest lookup; the other half is compared."""
    return int.from_bytes(key[:8], "big", signed=True)
