"""This module tells numbers that stand at the top of a row (and those of usage) from the nested ones, which the index names with dots.

A field of the row may have a dot in its own name; the index stores only names, so the first row that has such a field is asked.
"""

from __future__ import annotations

from rollforge.index.facts import split_line
from rollforge.index.sql import quoted
from rollforge.index.view import Index

NESTED = ("reward_components.", "input_tokens_details.", "output_tokens_details.")
"""Beginnings of names that are known to be nested."""


def top_level_numbers(index: Index) -> list[str]:
    """The columns of numbers that are not nested, in the order of `index.numbers`."""
    names = index.name_by_column
    return [
        column
        for column in index.numbers
        if "." not in names[column] or _is_top_level(index, column, names[column])
    ]


def _is_top_level(index: Index, column: str, name: str) -> bool:
    if name.startswith(NESTED):
        return False
    found = index.select(f"select min(row) as row from rollouts where {quoted(column)} is not null")
    row = found.column("row")[0].as_py()
    return row is not None and name in split_line(next(index.read([row])))[0]
