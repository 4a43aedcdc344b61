"""Restricts user SQL, and explains its mistakes.

A `--where` is one expression over columns, `--sort` a list of order terms, a query one SELECT. DuckDB's own parser classifies the
text. The connection can only read the index: no other files, no network, no changes of settings. `label` is the name of a text in
messages, such as `--where 'reward > 1'`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypedDict, cast

import msgspec
import pyarrow as pa

from rollforge.errors import DataError, UsageError
from rollforge.index.schema import literal
from rollforge.registry import did_you_mean

if TYPE_CHECKING:
    import duckdb

ColumnsByTable = Mapping[str, Sequence[str]]

TABLES = ("rollouts", "tasks", "failures")
"""Tables that user SQL may read."""

CATALOGUE = {("information_schema", "columns"), ("information_schema", "tables")}
"""System tables that user SQL may read: names of columns."""

TABLE_FUNCTIONS = {
    "range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "test_all_types", "duckdb_functions",
    "duckdb_types", "duckdb_columns",
}  # fmt: skip
"""Table functions without file access. An allow-list, so that functions that DuckDB adds later are refused."""

_OPENS_FILES = re.compile(
    r"(read|parquet|sniff|write)_\w*|glob|getenv|query|query_table|json_serialize_plan", re.IGNORECASE
)
"""Scalar functions that reach outside the tables or run other SQL; refused."""


_QUERY_EXAMPLE = 'for example "select reward, count(*) from rollouts group by 1"; columns and their types: "describe rollouts"'
_WHERE_EXAMPLE = 'for example --where "reward >= 0.5 and not is_truncated"'
_GONE = ("No files found", "Cannot open file")
"""DuckDB's messages about a missing part; user queries cannot name files."""

# Running SQL


def lock_down(connection: duckdb.DuckDBPyConnection, folders: Sequence[str]) -> None:
    """Restrict the connection to these folders, whatever the SQL says."""
    allowed = ", ".join(literal(folder.rstrip("/") + "/") for folder in folders)
    connection.execute(f"SET allowed_directories = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def fetch(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The result as an Arrow table. It runs in a thread, so that Ctrl-C can cancel it: DuckDB does not check signals."""
    relation = connection.sql(sql)
    with ThreadPoolExecutor(1) as worker:
        table = worker.submit(relation.to_arrow_table)
        try:
            return table.result()
        except KeyboardInterrupt:
            while not table.done():  # again, in case the query had not begun when it was interrupted
                connection.interrupt()
                wait([table], timeout=0.05)
            raise


def run_select(
    connection: duckdb.DuckDBPyConnection, sql: str, *, columns: ColumnsByTable, label: str = "query"
) -> pa.Table:
    """Run a user's SELECT; a mistake in it becomes a `UsageError` that names the nearest columns."""
    import duckdb

    check_text(sql, label=label)
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(f"{label}: {_plain(error)}", hint=_QUERY_EXAMPLE) from error
    if len(statements) != 1:
        raise UsageError(
            f"the {label} holds {len(statements)} statements; write one",
            hint="put one statement into each command",
        )
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"the {label} is no SELECT",
            hint="the index can only be read: begin with SELECT, for example select reward, count(*) from rollouts group by 1",
        )
    check_reach(parse(connection, sql, label=label, hint=_QUERY_EXAMPLE), label=label)
    return _execute(connection, sql, columns, label)


def check_where(
    connection: duckdb.DuckDBPyConnection,
    where: str,
    *,
    columns: ColumnsByTable,
    table: str,
    flag: str = "--where",
) -> str:
    """`where` in parentheses, for use in a query; raises unless it is one expression over known columns."""
    if not where.strip():
        raise UsageError(f"{flag} is empty", hint=f'write an expression: {flag} "reward >= 0.5"')
    label = f"{flag} {where!r}"
    check_expression(connection, where, label=label, hint=_WHERE_EXAMPLE)
    _execute(connection, f"SELECT 1 FROM {table} WHERE ({where}\n) LIMIT 0", columns, label)
    return f"({where}\n)"


def check_sort(connection: duckdb.DuckDBPyConnection, sort: str) -> str:
    """`sort` for use after ORDER BY, where more terms may follow; raises unless it is a list of terms."""
    check_order(
        connection, sort, label=f"--sort {sort!r}", hint='for example --sort "answer_chars desc, task"'
    )
    return f"{sort}\n"


def _execute(
    connection: duckdb.DuckDBPyConnection, sql: str, columns: ColumnsByTable, label: str
) -> pa.Table:
    import duckdb

    try:
        return fetch(connection, sql)
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) and any(words in str(error) for words in _GONE):
            raise DataError(
                "the index was removed while it was read", hint="run the command again"
            ) from error
        tree = parse(connection, sql, label=label, hint=_QUERY_EXAMPLE)
        raise explained(str(error), tree, columns, label) from error


def _plain(error: duckdb.Error) -> str:
    """The first line of DuckDB's message; the rest repeats the query."""
    return str(error).strip().split("\n")[0]


# What a text is, and what it reads


class _QualifiedName(TypedDict, total=False):
    path: list[str]


class _CommonTable(TypedDict):
    key: str


class _CommonTables(TypedDict, total=False):
    map: list[_CommonTable]


class _Modifier(TypedDict, total=False):
    orders: list[object]


class _Function(TypedDict, total=False):
    function_name: str


SqlNode = TypedDict(
    "SqlNode",
    {
        "type": str,
        "class": str,
        "alias": str,
        "qualified_name": _QualifiedName,
        "catalog_name": str,
        "schema_name": str,
        "table_name": str,
        "column_names": list[str],
        "function": _Function,
        "function_name": str,
        "cte_map": _CommonTables,
        "modifiers": list[_Modifier],
    },
    total=False,
)
"""A node of DuckDB's syntax tree, with the fields that are read here; others may hold further nodes."""


def parse(connection: duckdb.DuckDBPyConnection, sql: str, *, label: str, hint: str) -> SqlNode:
    """The syntax tree of one SELECT, without positions; raises if the SQL is anything else."""
    check_text(sql, label=label)
    try:
        [[text]] = (
            connection.cursor()
            .execute("SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)", [sql])
            .fetchall()
        )
        parsed = msgspec.json.decode(text)
    except RecursionError as error:
        raise UsageError(f"{label}: nested too deeply", hint=hint) from error
    if parsed["error"]:
        is_other = parsed["error_type"] == "not implemented"  # SQL, but no SELECT
        reason = "the index can be read, not changed" if is_other else parsed["error_message"].splitlines()[0]
        raise UsageError(f"{label}: {reason}", hint=hint)
    if len(parsed["statements"]) != 1:
        raise UsageError(f"{label}: {len(parsed['statements'])} statements; write one", hint=hint)
    tree: SqlNode = parsed["statements"][0]["node"]
    for node in _nodes(tree):
        for key in [key for key in node if key.startswith("query_location")]:
            del node[key]  # type: ignore[misc]
    return tree


def check_text(text: str, *, label: str) -> None:
    """Raise if the text contains half a surrogate pair, which a terminal may send."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{label}: not a text in UTF-8", hint="type it anew, without unusual characters"
        ) from error


def check_expression(connection: duckdb.DuckDBPyConnection, text: str, *, label: str, hint: str) -> None:
    """Raise unless `text` is exactly one expression that reads only the run.

    A text is one expression if parentheses around it do not change its meaning. `a) or (b` is invalid without them; `a, b` and
    `a limit 1` change their meaning with them.
    """
    bare = parse(connection, f"SELECT {text}\n", label=label, hint=hint)
    enclosed = parse(connection, f"SELECT ({text}\n)", label=label, hint=hint)
    if bare != enclosed:
        raise UsageError(f"{label} is not one expression", hint=hint)
    check_reach(bare, label=label)


def check_order(connection: duckdb.DuckDBPyConnection, text: str, *, label: str, hint: str) -> None:
    """Raise unless `text` is exactly a list of order terms (`reward desc, task`) that read only the run."""
    tree = parse(connection, f"SELECT 1 ORDER BY {text}\n, row", label=label, hint=hint)
    plain = parse(connection, "SELECT 1 ORDER BY row", label=label, hint=hint)
    [order, *others] = tree["modifiers"]
    [last] = plain["modifiers"][0]["orders"]
    if others or order.get("orders", [])[-1:] != [last] or {**tree, "modifiers": plain["modifiers"]} != plain:
        raise UsageError(f"{label} is not a list of columns or expressions to order by", hint=hint)
    check_reach(tree, label=label)


def check_reach(tree: SqlNode, *, label: str) -> None:
    """Raise if the SQL opens a file or reads another table, also through a function or a nested query."""
    named = {name.lower() for name in _common_tables(tree)}
    for node in _nodes(tree):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            _check_table(_path(node), named, label)
        elif kind == "SHOW_REF" and node.get("table_name"):
            if not re.fullmatch(r'"?\w+"?', node["table_name"]):
                raise _unknown_table(node["table_name"], label)
        elif kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", ""))
            if name.lower() not in TABLE_FUNCTIONS:
                raise _refused_function(name, label)
        elif node.get("class") == "FUNCTION" and _OPENS_FILES.fullmatch(str(node.get("function_name", ""))):
            raise _refused_function(node["function_name"], label)


def _check_table(path: tuple[str, ...], named: set[str], label: str) -> None:
    *schema, name = (part.lower() for part in path)
    if not schema and name in named and re.fullmatch(r"[^./\\:]+", name):
        return  # a name with a dot or a slash could mean a file where the WITH does not reach
    if name in TABLES and tuple(schema) in ((), ("main",), ("memory", "main"), ("memory",)):
        return
    if (*schema, name) not in CATALOGUE:
        raise _unknown_table(".".join(path), label)


def _unknown_table(name: str, label: str) -> UsageError:
    return UsageError(
        f"{label}: there is no table {name!r}{did_you_mean(name, list(TABLES))}",
        hint=f"tables: {', '.join(TABLES)}; no file can be read",
    )


def _refused_function(name: str, label: str) -> UsageError:
    return UsageError(
        f"{label}: {name}() cannot be used here: SQL reads the run and no file",
        hint=f"tables: {', '.join(TABLES)}",
    )


def _path(table: SqlNode) -> tuple[str, ...]:
    """A table's name with schema and catalogue, which releases of DuckDB represent differently."""
    whole = table.get("qualified_name", _QualifiedName()).get("path")
    if whole:
        return tuple(whole)
    parts = (table.get("catalog_name"), table.get("schema_name"), table.get("table_name"))
    return tuple(part for part in parts if part) or ("",)


def tables_by_alias(tree: SqlNode) -> dict[str, str]:
    """Alias → table of each table that the query reads, in lower case."""
    tables = (node for node in _nodes(tree) if node.get("type") == "BASE_TABLE")
    return {str(node.get("alias") or _path(node)[-1]).lower(): _path(node)[-1].lower() for node in tables}


def column_paths(tree: SqlNode) -> list[tuple[str, ...]]:
    """Every column reference as written, split at dots outside quotes."""
    columns = (node for node in _nodes(tree) if node.get("type") == "COLUMN_REF")
    return [tuple(node["column_names"]) for node in columns if node.get("column_names")]


def _common_tables(tree: SqlNode) -> Iterator[str]:
    """Names defined by WITH."""
    for node in _nodes(tree):
        for entry in node.get("cte_map", _CommonTables()).get("map", []):
            yield entry["key"]


def _nodes(tree: SqlNode) -> Iterator[SqlNode]:
    """Every object of the tree. Iterative, because expressions may be arbitrarily deep."""
    left: list[object] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield cast("SqlNode", node)
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)


# Wrong names

_COLUMN = re.compile(r'[Cc]olumn "?([^"\n]+?)"?(?: in \w+ list)? (?:not found|does not exist)')
_COLUMN_OF = re.compile(r'"([^"\n]+)" does not have a column named "([^"\n]+)"')
_OWNER = re.compile(r'Referenced table "([^"\n]+)" not found')


def explained(message: str, tree: SqlNode, columns: ColumnsByTable, label: str) -> UsageError:
    """The error for a query, parsed as `tree`, that DuckDB refused with `message`; DuckDB's own text if we have no better
    explanation.
    """
    used = tables_by_alias(tree)
    here = [table for table in columns if table in used.values()] or list(columns)
    of_table, plain, owner = _COLUMN_OF.search(message), _COLUMN.search(message), _OWNER.search(message)
    if of_table or owner or "Cannot extract field" in message:
        dotted = _dotted(tree, used, [name for table in here for name in columns[table]])
        if dotted is not None:
            return _unquoted(dotted, label)
    if of_table:
        table = used.get(of_table.group(1).lower(), "")
        return _unknown_column(of_table.group(2), [table] if table in columns else here, columns, label)
    if plain:
        return _unknown_column(plain.group(1), here, columns, label)
    if owner:
        return _unknown_owner(owner.group(1), tree, here, columns, label)
    lines = message.strip().split("\n")  # further lines repeat the query
    advice = [line for line in lines[1:2] if line.startswith("Did you mean")]
    is_expression = label.startswith("--")
    return UsageError(
        f"{label}: {' '.join(lines[:1] + advice)}", hint=_WHERE_EXAMPLE if is_expression else _QUERY_EXAMPLE
    )


def _unquoted(spelling: str, label: str) -> UsageError:
    """Suggest quotes for a column whose name contains a dot."""
    return UsageError(
        f"{label}: a column with a dot in its name stands in double quotes", hint=f"write it as {spelling}"
    )


def _dotted(tree: SqlNode, used: Mapping[str, str], columns: Sequence[str]) -> str | None:
    """Suggest the spelling of a column that was written as if its dots separated table and column."""
    right = {name.lower(): name for name in columns if "." in name}
    for path in column_paths(tree):
        start = 1 if path[0].lower() in used and len(path) > 2 else 0
        name = right.get(".".join(path[start:]).lower()) if len(path) - start > 1 else None
        if name is not None:
            return "".join(f"{part}." for part in path[:start]) + f'"{name}"'
    return None


def _unknown_column(name: str, tables: Sequence[str], columns: ColumnsByTable, label: str) -> UsageError:
    column_names = list(dict.fromkeys(column for table in tables for column in columns[table]))
    hint = f"columns of {' and '.join(tables)}: {', '.join(column_names)}"
    if name.lower() in {column.lower() for column in column_names}:
        return UsageError(
            f"{label}: there is no column {name!r} where it is used; it is one of {' and '.join(tables)}",
            hint=f"a subquery passes on only what it selects; {hint}",
        )
    for table in columns:
        if table not in tables and name.lower() in {column.lower() for column in columns[table]}:
            what = f"{' and '.join(tables)} has no column {name!r}; it is a column of {table!r}"
            return UsageError(f"{label}: {what}", hint=hint)
    near = did_you_mean(name, column_names)
    return UsageError(
        f"{label}: there is no column {name!r}{near or _near_elsewhere(name, tables, columns)}", hint=hint
    )


def _near_elsewhere(name: str, tables: Sequence[str], columns: ColumnsByTable) -> str:
    for table in columns:
        near = difflib.get_close_matches(name, columns[table], n=1, cutoff=0.7) if table not in tables else []
        if near:
            return f" in {' and '.join(tables)}; {table!r} has {near[0]!r}"
    return ""


def _unknown_owner(
    owner: str, tree: SqlNode, here: Sequence[str], columns: ColumnsByTable, label: str
) -> UsageError:
    """Explain `owner.name` if there is no table `owner`: a wrong alias, or a misspelled column with a dot in its name."""
    column_names = [column for table in here for column in columns[table]]
    path = next((path for path in column_paths(tree) if path[0] == owner), (owner,))
    near = difflib.get_close_matches(
        ".".join(path), [name for name in column_names if "." in name], n=1, cutoff=0.7
    )
    if near:
        return UsageError(
            f"{label}: there is no column {'.'.join(path)!r}; did you mean {near[0]!r}?",
            hint=f'a column with a dot in its name stands in double quotes: "{near[0]}"',
        )
    aliases = list(tables_by_alias(tree))
    return UsageError(
        f"{label}: no table is called {owner!r} here{did_you_mean(owner, aliases)}",
        hint=f"tables of this query: {', '.join(aliases) or 'none'}; columns: {', '.join(column_names)}",
    )
