"""This module is the one door to SQL: what a user may write, and what a wrong name is told.

A `--where` is one expression over columns, a query one SELECT. The connection reads the index and nothing else: no other file,
no network, no setting can be changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

if TYPE_CHECKING:
    import duckdb

_UNKNOWN = re.compile(
    r'[Cc]olumn "?([^"\n]+?)"? (?:not found|does not exist)|[Tt]able with name ([^\s!]+) does not exist'
)


def quoted(name: str) -> str:
    """A column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def lock_down(connection: duckdb.DuckDBPyConnection, folders: Sequence[str]) -> None:
    """From here on the connection reads these folders and nothing else, whatever the SQL says."""
    allowed = ", ".join(literal(folder.rstrip("/") + "/") for folder in folders)
    connection.execute(f"SET allowed_directories = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def fetch(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The result of our own SQL as an Arrow table."""
    return connection.sql(sql).to_arrow_table()


def run_select(
    connection: duckdb.DuckDBPyConnection, sql: str, *, columns: Sequence[str], told: str = "query"
) -> pa.Table:
    """Run one SELECT of the user's; a mistake in it becomes a `UsageError` that names the nearest columns."""
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(f"{told}: {_plain(error)}", hint="it is SQL as DuckDB reads it") from error
    if len(statements) != 1:
        raise UsageError(f"the {told} holds {len(statements)} statements; write one")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(f"the {told} is no SELECT", hint="the index can be read, not changed")
    return _execute(connection, sql, columns, told)


def check_where(
    connection: duckdb.DuckDBPyConnection, where: str, *, columns: Sequence[str], table: str
) -> str:
    """`where` as it stands inside a query; raises when it is not one expression over known columns."""
    import duckdb

    if not where.strip():
        raise UsageError("--where is empty", hint='write an expression: --where "reward >= 0.5"')
    for probe in (f"SELECT ({where}\n)", f"SELECT 1 FROM {table} WHERE ({where}\n) LIMIT 0"):
        try:
            count = len(connection.extract_statements(probe))
        except duckdb.Error as error:
            raise UsageError(f"--where {where!r}: {_plain(error)}", hint=_EXAMPLE) from error
        if count != 1:
            raise UsageError(f"--where {where!r} is more than one expression", hint=_EXAMPLE)
    _execute(connection, probe, columns, f"--where {where!r}")
    return f"({where}\n)"


_EXAMPLE = 'for example --where "accuracy >= 0.8 and set_overlap >= 0.9"'


def _execute(connection: duckdb.DuckDBPyConnection, sql: str, columns: Sequence[str], told: str) -> pa.Table:
    import duckdb

    try:
        return fetch(connection, sql)
    except duckdb.Error as error:
        raise _explained(error, columns, told) from error


def _explained(error: duckdb.Error, columns: Sequence[str], told: str) -> UsageError:
    unknown = _UNKNOWN.search(str(error))
    if unknown and unknown.group(1):
        name = unknown.group(1)
        return UsageError(
            f"{told}: there is no column {name!r}{did_you_mean(name, list(columns))}",
            hint=f"columns: {', '.join(columns)}",
        )
    if unknown:
        return UsageError(
            f"{told}: there is no table {unknown.group(2)!r}", hint="tables: rollouts, tasks, failures"
        )
    return UsageError(f"{told}: {_plain(error)}")


def _plain(error: duckdb.Error) -> str:
    """The first line of DuckDB's message: the rest draws the query again."""
    return str(error).strip().split("\n")[0]
