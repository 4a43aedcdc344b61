"""This module reads a user's SQL as DuckDB's own parser does, to say what kind of text it is and what it reaches for.

It decides whether a text is exactly one expression or exactly a list of order terms, and refuses SQL that names anything but the
tables of the run. It runs nothing and knows no column: that is `sql.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonObject
from rollforge.registry import did_you_mean

if TYPE_CHECKING:
    import duckdb

TABLES = ("rollouts", "tasks", "failures")
"""What a user's SQL may read."""

CATALOGUE = {("information_schema", "columns"), ("information_schema", "tables")}
"""What it may read besides: the names of the columns."""

TABLE_FUNCTIONS = {
    "range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "test_all_types", "duckdb_functions",
    "duckdb_types", "duckdb_columns",
}  # fmt: skip
"""Functions in a FROM that make rows without opening anything. A list of the allowed: what DuckDB adds later stays shut."""

_OPENS_FILES = re.compile(
    r"(read|parquet|sniff|write)_\w*|glob|getenv|query|query_table|json_serialize_plan", re.IGNORECASE
)
"""Functions of a value that reach outside the tables, or that run other SQL."""


def parse(connection: duckdb.DuckDBPyConnection, sql: str, *, told: str, hint: str) -> JsonObject:
    """The tree of one SELECT, without the places of its words in the text; raises when it is none."""
    check_text(sql, told=told)
    try:
        [[text]] = (
            connection.cursor()
            .execute("SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)", [sql])
            .fetchall()
        )
        found = msgspec.json.decode(text)
    except RecursionError as error:
        raise UsageError(f"{told}: nested too deeply", hint=hint) from error
    if found["error"]:
        is_other = found["error_type"] == "not implemented"  # SQL, but no SELECT
        reason = "the index can be read, not changed" if is_other else found["error_message"].splitlines()[0]
        raise UsageError(f"{told}: {reason}", hint=hint)
    if len(found["statements"]) != 1:
        raise UsageError(f"{told}: {len(found['statements'])} statements; write one", hint=hint)
    tree: JsonObject = found["statements"][0]["node"]
    for node in _nodes(tree):
        for key in [key for key in node if key.startswith("query_location")]:
            del node[key]
    return tree


def check_text(text: str, *, told: str) -> None:
    """Raise when the text holds half a character, as a terminal may send it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{told}: not a text in UTF-8", hint="type it anew, without unusual characters"
        ) from error


def check_expression(connection: duckdb.DuckDBPyConnection, text: str, *, told: str, hint: str) -> None:
    """Raise unless `text` is exactly one expression that reads only the run.

    One expression is what means the same with and without parentheses around it. `a) or (b` cannot stand without them,
    `a, b` and `a limit 1` mean something else with them.
    """
    bare = parse(connection, f"SELECT {text}\n", told=told, hint=hint)
    enclosed = parse(connection, f"SELECT ({text}\n)", told=told, hint=hint)
    if bare != enclosed:
        raise UsageError(f"{told} is not one expression", hint=hint)
    check_reach(bare, told=told)


def check_order(connection: duckdb.DuckDBPyConnection, text: str, *, told: str, hint: str) -> None:
    """Raise unless `text` is exactly a list of order terms (`reward desc, task`) that read only the run."""
    tree = parse(connection, f"SELECT 1 ORDER BY {text}\n, row", told=told, hint=hint)
    plain = parse(connection, "SELECT 1 ORDER BY row", told=told, hint=hint)
    [order, *others] = tree["modifiers"]
    [last] = plain["modifiers"][0]["orders"]
    if others or order.get("orders", [])[-1:] != [last] or {**tree, "modifiers": plain["modifiers"]} != plain:
        raise UsageError(f"{told} is not a list of columns or expressions to order by", hint=hint)
    check_reach(tree, told=told)


def check_reach(tree: JsonObject, *, told: str) -> None:
    """Raise when the SQL opens a file or reads a table that is not the run's, also through a function or a nested query."""
    named = {name.lower() for name in _common_tables(tree)}
    for node in _nodes(tree):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            _check_table(_path(node), named, told)
        elif kind == "SHOW_REF" and node.get("table_name"):
            if not re.fullmatch(r'"?\w+"?', node["table_name"]):
                raise _unknown_table(node["table_name"], told)
        elif kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", ""))
            if name.lower() not in TABLE_FUNCTIONS:
                raise _refused_function(name, told)
        elif node.get("class") == "FUNCTION" and _OPENS_FILES.fullmatch(str(node.get("function_name", ""))):
            raise _refused_function(node["function_name"], told)


def _check_table(path: tuple[str, ...], named: set[str], told: str) -> None:
    *schema, name = (part.lower() for part in path)
    if not schema and name in named and re.fullmatch(r"[^./\\:]+", name):
        return  # a name with a dot or a slash could mean a file where the WITH does not reach
    if name in TABLES and tuple(schema) in ((), ("main",), ("memory", "main"), ("memory",)):
        return
    if (*schema, name) not in CATALOGUE:
        raise _unknown_table(".".join(path), told)


def _unknown_table(name: str, told: str) -> UsageError:
    return UsageError(
        f"{told}: there is no table {name!r}{did_you_mean(name, list(TABLES))}",
        hint=f"tables: {', '.join(TABLES)}; no file can be read",
    )


def _refused_function(name: str, told: str) -> UsageError:
    return UsageError(
        f"{told}: {name}() cannot be used here: SQL reads the run and no file",
        hint=f"tables: {', '.join(TABLES)}",
    )


def _path(table: JsonObject) -> tuple[str, ...]:
    """A table's name with its schema and catalogue; two releases of DuckDB write them differently."""
    whole = table.get("qualified_name", {}).get("path")
    if whole:
        return tuple(whole)
    parts = (table.get("catalog_name"), table.get("schema_name"), table.get("table_name"))
    return tuple(part for part in parts if part) or ("",)


def tables_by_alias(tree: JsonObject) -> dict[str, str]:
    """What the query calls each table it reads → the table, both in small letters."""
    tables = (node for node in _nodes(tree) if node.get("type") == "BASE_TABLE")
    return {str(node.get("alias") or _path(node)[-1]).lower(): _path(node)[-1].lower() for node in tables}


def column_paths(tree: JsonObject) -> list[tuple[str, ...]]:
    """Every column as it is written, cut at the dots that stand outside quotes."""
    columns = (node for node in _nodes(tree) if node.get("type") == "COLUMN_REF")
    return [tuple(node["column_names"]) for node in columns if node.get("column_names")]


def _common_tables(tree: JsonObject) -> Iterator[str]:
    """The names that a WITH gives."""
    for node in _nodes(tree):
        for entry in node.get("cte_map", {}).get("map", []):
            yield entry["key"]


def _nodes(tree: Any) -> Iterator[JsonObject]:
    """Every object of the tree; no recursion, because an expression may be as deep as its author likes."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)
