"""Distinguishes number columns that are fields of the row from nested ones."""

from __future__ import annotations

from rollforge.index.index import Index
from rollforge.index.row_facts import split_line
from rollforge.index.schema import quoted

NESTED = ("reward_components.", "input_tokens_details.", "output_tokens_details.")
"""Prefixes of fields that are always nested."""


def top_level_numbers(index: Index) -> list[str]:
    """Number columns that are top-level fields of the rows, in the order of `index.numbers`.

    A field of the row may have a dot in its own name. The index stores only names, so the first row with such a field decides.
    """
    names = index.name_by_column
    return [
        column
        for column in index.numbers
        if "." not in names[column] or _is_top_level(index, column, names[column])
    ]


def _is_top_level(index: Index, column: str, name: str) -> bool:
    if name.startswith(NESTED):
        return False
    first = index.select(f"select min(row) as row from rollouts where {quoted(column)} is not null")
    row = first.column("row")[0].as_py()
    return row is not None and name in split_line(next(index.read([row])))[0]
