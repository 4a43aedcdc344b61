"""Adapters for the two databases of a buffer, so that each statement is written once.

Statements use `?` for values and `{ids}` for "one of these ids". Every change happens in one transaction that
no other writer's overlaps: SQLite's write lock, or an advisory lock in PostgreSQL. A PostgreSQL connection that broke
is opened again at the next transaction.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from rollforge.errors import DataError, UsageError
from rollforge.records import to_json
from rollforge.runtime.on_error import OnError
from rollforge.store.atomic import make_directory

Row = tuple[Any, ...]

_TABLES = """
create table if not exists experiences (
  id {serial}, uid text not null unique, task text not null, taskset text not null, model_version bigint,
  reward double precision, difficulty double precision, priority double precision not null, created double
  precision not null, state smallint not null, uses integer not null, claim text, owner text, until double
  precision, body {blob});
create index if not exists experiences_ready on experiences (state, id);
create index if not exists experiences_versions on experiences (model_version) where state = 0;
create table if not exists claims (
  token text primary key, owner text not null, until double precision not null, ids text not null);
create table if not exists counters (name text primary key, value bigint not null);
"""


class Database(Protocol):
    """One connection."""

    @property
    def operational_error(self) -> type[Exception]:
        """What the driver raises when the server or the file cannot be used now."""

    def transaction(self) -> Any:
        """A context in which this connection is the only writer; leaving it commits, an exception rolls
        back."""

    def rows(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> list[Row]:
        """Run one statement and return its rows."""

    def change(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> int:
        """Run one statement and return how many rows it changed."""

    def many(self, sql: str, values: Sequence[Row]) -> int:
        """Run one statement for many rows and return how many it changed."""

    def retryable(self, error: BaseException) -> bool:
        """Whether retrying the same transaction may succeed."""

    def close(self) -> None:
        """Give the connection back."""


_KEYWORDS = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service|sslmode)\s*=")
"""How a libpq connection string begins."""


def connect(address: str | Path) -> Database:
    """The database at a path or a `postgresql://` URL, its tables made if they are not there."""
    text = str(address)
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(text)
    if _KEYWORDS.match(text):  # not a file of that name, which might hold a password
        raise UsageError(
            "a buffer's database is not written as keywords",
            hint="postgresql://USER@HOST/DATABASE; its password in PGPASSWORD",
        )
    if "://" in text and not text.startswith("sqlite:///"):
        raise UsageError(f"{text}: no such kind of buffer", hint="a path, sqlite:///PATH or postgresql://…")
    return SqliteDatabase(Path(text.removeprefix("sqlite:///")))


class SqliteDatabase:
    """A file. Commits are synced to disk: they survive power loss, and one sync serves a whole batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_directory(path.parent)
            self._connection = sqlite3.connect(
                path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.OperationalError) as error:
            raise UsageError(
                f"{path}: no buffer can be there: {error}", hint="name a file in a folder you can write to"
            ) from error
        try:
            self._connection.execute("pragma journal_mode = wal")
            self._connection.execute("pragma synchronous = full")
            tables = _TABLES.format(serial="integer primary key autoincrement", blob="blob")
            self._connection.executescript(tables)
        except (
            sqlite3.DatabaseError,
            UnicodeDecodeError,
        ) as error:  # sqlite's own messages quote the file's bytes
            self._connection.close()
            raise UsageError(f"{path}: not a buffer: {error}", hint="name another file") from error

    def _roll_back(self) -> None:
        with suppress(sqlite3.DatabaseError):  # in a damaged file, that too may fail
            self._connection.execute("rollback")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._damage_named():
            self._connection.execute("begin immediate")
        with OnError(self._roll_back):
            yield
        with self._damage_named():
            self._connection.execute("commit")

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if self.retryable(error):
                raise
            raise DataError(
                f"{self._path}: the buffer cannot be read or written: {error}",
                hint="fill another one from the run: rollforge experiences RUN --buffer NEW.db",
            ) from error

    def rows(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> list[Row]:
        with self._damage_named():
            return self._run(sql, values, ids).fetchall()

    def change(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> int:
        with self._damage_named():
            return self._run(sql, values, ids).rowcount

    def _run(self, sql: str, values: Sequence[Any], ids: Sequence[int | str] | None) -> sqlite3.Cursor:
        if ids is not None:
            sql = sql.replace("{ids}", "in (select value from json_each(?))")
            values = (*values, to_json(list(ids)).decode())
        return self._connection.execute(sql, values)

    @property
    def operational_error(self) -> type[Exception]:
        return sqlite3.OperationalError

    def retryable(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)

    def many(self, sql: str, values: Sequence[Row]) -> int:
        with self._damage_named():
            return self._connection.executemany(sql, values).rowcount if values else 0

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    """A server that several machines share. Needs the extra `postgres`."""

    LOCK = 0x726F6C6C
    """The advisory lock every writer of a buffer takes for the length of its transaction."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise UsageError(
                "a PostgreSQL buffer needs a package that is not installed (psycopg)",
                hint="pip install 'rollforge[postgres]'",
            ) from error
        self._url = url
        self._psycopg = psycopg
        try:
            self._connection: Any = psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError as error:
            raise UsageError(
                f"the buffer's database does not answer: {str(error).strip()}",
                hint="start the server, or check host, port and database of --buffer postgresql://…",
            ) from error
        with self.transaction():
            tables = _TABLES.format(serial="bigserial primary key", blob="bytea")
            self._connection.execute("set local client_min_messages = warning")
            self._connection.execute(tables)

    @property
    def operational_error(self) -> type[Exception]:
        error: type[Exception] = self._psycopg.OperationalError
        return error

    def retryable(self, error: BaseException) -> bool:
        """Whether the connection was lost: the transaction did not commit, or its commit was not confirmed, and can be retried."""
        return isinstance(error, self._psycopg.OperationalError)

    def _reconnect(self) -> None:
        self._connection.close()
        self._connection = self._psycopg.connect(self._url, autocommit=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._connection.closed or self._connection.broken:
            self._reconnect()
        with self._connection.transaction():
            self._connection.execute("select pg_advisory_xact_lock(%s)", (self.LOCK,))
            yield

    def rows(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> list[Row]:
        rows: list[Row] = self._run(sql, values, ids).fetchall()
        return rows

    def change(self, sql: str, values: Sequence[Any] = (), ids: Sequence[int | str] | None = None) -> int:
        return int(self._run(sql, values, ids).rowcount)

    def _run(self, sql: str, values: Sequence[Any], ids: Sequence[int | str] | None) -> Any:
        if ids is not None:
            sql = sql.replace("{ids}", "= any(?)")
            values = (*values, list(ids))
        return self._connection.execute(sql.replace("?", "%s"), values)

    def many(self, sql: str, values: Sequence[Row]) -> int:
        if not values:
            return 0
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), values)
            return int(cursor.rowcount)

    def close(self) -> None:
        self._connection.close()
