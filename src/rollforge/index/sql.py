"""This module is the one door to SQL: what a user may write, and what a wrong name is told.

A `--where` is one expression over columns, a query one SELECT. The connection reads the index and nothing else: no other file,
no network, no setting can be changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rollforge.errors import DataError, UsageError
from rollforge.index.grammar import check_expression, check_order, check_reach, check_text, parse
from rollforge.index.wrong_names import Columns, explained

if TYPE_CHECKING:
    import duckdb


_AS_DUCKDB = "it is SQL as DuckDB reads it"
_GONE = ("No files found", "Cannot open file")
"""What DuckDB says of a part that is not there; a query names no files."""


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
    """The result as an Arrow table; Ctrl-C ends the query.

    DuckDB looks for no signals while it makes a table, so it works in a thread of its own and this one waits.
    """
    from concurrent.futures import ThreadPoolExecutor, wait  # many commands never ask in SQL

    relation = connection.sql(sql)
    with ThreadPoolExecutor(1) as worker:
        table = worker.submit(relation.to_arrow_table)
        try:
            return table.result()
        except KeyboardInterrupt:
            while not table.done():  # again, should the query not have begun when it was told to stop
                connection.interrupt()
                wait([table], timeout=0.05)
            raise


def run_select(
    connection: duckdb.DuckDBPyConnection, sql: str, *, columns: Columns, told: str = "query"
) -> pa.Table:
    """Run one SELECT of the user's; a mistake in it becomes a `UsageError` that names the nearest columns."""
    import duckdb

    check_text(sql, told=told)
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(f"{told}: {_plain(error)}", hint=_AS_DUCKDB) from error
    if len(statements) != 1:
        raise UsageError(f"the {told} holds {len(statements)} statements; write one")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(f"the {told} is no SELECT", hint="the index can be read, not changed")
    check_reach(parse(connection, sql, told=told, hint=_AS_DUCKDB), told=told)
    return _execute(connection, sql, columns, told)


def check_where(connection: duckdb.DuckDBPyConnection, where: str, *, columns: Columns, table: str) -> str:
    """`where` as it stands inside a query; raises when it is not one expression over known columns."""
    if not where.strip():
        raise UsageError("--where is empty", hint='write an expression: --where "reward >= 0.5"')
    told = f"--where {where!r}"
    check_expression(connection, where, told=told, hint=_EXAMPLE)
    _execute(connection, f"SELECT 1 FROM {table} WHERE ({where}\n) LIMIT 0", columns, told)
    return f"({where}\n)"


def check_sort(connection: duckdb.DuckDBPyConnection, sort: str) -> str:
    """`sort` as it stands after ORDER BY, where more terms may follow; raises when it is more than a list of terms."""
    check_order(
        connection, sort, told=f"--sort {sort!r}", hint='for example --sort "answer_chars desc, task"'
    )
    return f"{sort}\n"


_EXAMPLE = 'for example --where "accuracy >= 0.8 and set_overlap >= 0.9"'


def _execute(connection: duckdb.DuckDBPyConnection, sql: str, columns: Columns, told: str) -> pa.Table:
    import duckdb

    try:
        return fetch(connection, sql)
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) and any(words in str(error) for words in _GONE):
            raise DataError(
                "the index was removed while it was read", hint="run the command again"
            ) from error
        tree = parse(connection, sql, told=told, hint=_AS_DUCKDB)
        raise explained(str(error), tree, columns, told) from error


def _plain(error: duckdb.Error) -> str:
    """The first line of DuckDB's message: the rest draws the query again."""
    return str(error).strip().split("\n")[0]
