"""This module knows which texts a JSON loader takes for a time.

A loader that infers types reads a column as times when every text in it looks like one, and the trainer then gets no text at all. What
is said here errs on the side of yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d(?::?\d\d(?::?\d\d(?:\.\d+)?)?)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)


def looks_like_time(text: str) -> bool:
    """Whether a loader might take the text for a date or a time."""
    return len(text) >= 10 and text[4] == "-" and _TIME.fullmatch(text) is not None


def place_of_times(rows: Iterable[object]) -> str | None:
    """A place of the rows where every text looks like a time, so that a loader would make times of them; None without one.

    Only as many rows are looked at as it takes to see something else in each place: most often one.
    """
    is_settled: dict[str, bool] = {}
    for row in rows:
        for place, text in _texts(row, ""):
            is_settled[place] = is_settled.get(place, False) or not looks_like_time(text)
        if all(is_settled.values()):
            return None
    return next((place for place, settled in is_settled.items() if not settled), None)


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, place)
