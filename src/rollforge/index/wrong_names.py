"""This module turns what DuckDB says about a wrong name into an error that names the right ones.

It reads the message and the parsed query, never the data. What it does not understand is passed on in DuckDB's words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from rollforge.errors import UsageError
from rollforge.index.grammar import column_paths, tables_by_alias
from rollforge.records import JsonObject
from rollforge.registry import did_you_mean

Columns = Mapping[str, Sequence[str]]
"""Table → its columns."""

_COLUMN = re.compile(r'[Cc]olumn "?([^"\n]+?)"?(?: in \w+ list)? (?:not found|does not exist)')
_COLUMN_OF = re.compile(r'"([^"\n]+)" does not have a column named "([^"\n]+)"')
_OWNER = re.compile(r'Referenced table "([^"\n]+)" not found')


def explained(message: str, tree: JsonObject, columns: Columns, told: str) -> UsageError:
    """What to tell the user whose query, parsed as `tree`, DuckDB refused with `message`."""
    used = tables_by_alias(tree)
    here = [table for table in columns if table in used.values()] or list(columns)
    of_table, plain, owner = _COLUMN_OF.search(message), _COLUMN.search(message), _OWNER.search(message)
    if of_table or owner or "Cannot extract field" in message:
        dotted = _dotted(tree, used, [name for table in here for name in columns[table]])
        if dotted is not None:
            return _unquoted(dotted, told)
    if of_table:
        table = used.get(of_table.group(1).lower(), "")
        return _unknown_column(of_table.group(2), [table] if table in columns else here, columns, told)
    if plain:
        return _unknown_column(plain.group(1), here, columns, told)
    if owner:
        return _unknown_owner(owner.group(1), tree, here, columns, told)
    lines = message.strip().split("\n")  # further lines draw the query again
    advice = [line for line in lines[1:2] if line.startswith("Did you mean")]
    return UsageError(f"{told}: {' '.join(lines[:1] + advice)}")


def _unquoted(spelling: str, told: str) -> UsageError:
    """A column with a dot in its name, written without quotes."""
    return UsageError(
        f"{told}: a column with a dot in its name stands in double quotes", hint=f"write it as {spelling}"
    )


def _dotted(tree: JsonObject, used: Mapping[str, str], known: Sequence[str]) -> str | None:
    """The right spelling of a column that was written as if its dots led from table to column."""
    right = {name.lower(): name for name in known if "." in name}
    for path in column_paths(tree):
        start = 1 if path[0].lower() in used and len(path) > 2 else 0
        name = right.get(".".join(path[start:]).lower()) if len(path) - start > 1 else None
        if name is not None:
            return "".join(f"{part}." for part in path[:start]) + f'"{name}"'
    return None


def _unknown_column(name: str, tables: Sequence[str], columns: Columns, told: str) -> UsageError:
    known = list(dict.fromkeys(column for table in tables for column in columns[table]))
    hint = f"columns of {' and '.join(tables)}: {', '.join(known)}"
    if name.lower() in {column.lower() for column in known}:
        return UsageError(
            f"{told}: there is no column {name!r} where it is used; it is one of {' and '.join(tables)}",
            hint=f"a subquery passes on only what it selects; {hint}",
        )
    for table in columns:
        if table not in tables and name.lower() in {column.lower() for column in columns[table]}:
            what = f"{' and '.join(tables)} has no column {name!r}; it is a column of {table!r}"
            return UsageError(f"{told}: {what}", hint=hint)
    near = did_you_mean(name, known)
    return UsageError(
        f"{told}: there is no column {name!r}{near or _near_elsewhere(name, tables, columns)}", hint=hint
    )


def _near_elsewhere(name: str, tables: Sequence[str], columns: Columns) -> str:
    for table in columns:
        near = difflib.get_close_matches(name, columns[table], n=1, cutoff=0.7) if table not in tables else []
        if near:
            return f" in {' and '.join(tables)}; {table!r} has {near[0]!r}"
    return ""


def _unknown_owner(
    owner: str, tree: JsonObject, here: Sequence[str], columns: Columns, told: str
) -> UsageError:
    """`owner.name`, where nothing is called `owner`: a wrong alias, or a column with a dot in it and a slip of the pen."""
    known = [column for table in here for column in columns[table]]
    path = next((path for path in column_paths(tree) if path[0] == owner), (owner,))
    near = difflib.get_close_matches(".".join(path), [name for name in known if "." in name], n=1, cutoff=0.7)
    if near:
        return UsageError(
            f"{told}: there is no column {'.'.join(path)!r}; did you mean {near[0]!r}?",
            hint=f'a column with a dot in its name stands in double quotes: "{near[0]}"',
        )
    aliases = list(tables_by_alias(tree))
    return UsageError(
        f"{told}: no table is called {owner!r} here{did_you_mean(owner, aliases)}",
        hint=f"tables of this query: {', '.join(aliases) or 'none'}; columns: {', '.join(known)}",
    )
