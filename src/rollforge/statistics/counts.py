"""A count with its noun, in the singular and in the plural."""

from __future__ import annotations


def count_of(count: int, thing: str, things: str | None = None) -> str:
    """Write a count with its noun: `1 error`, `2,000 errors`; with a verb where one follows: `1 row has`, `2 rows have`."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"
