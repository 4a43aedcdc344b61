"""Texts that the `datasets` JSON loader parses as timestamps.

If every text of a column looks like a date, the loader makes the column a timestamp, and the trainer gets no text. The pattern
errs on the side of matching too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d(?::?\d\d(?::?\d\d(?:\.\d+)?)?)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)


def looks_like_time(text: str) -> bool:
    """Whether a loader might parse the text as a date or time."""
    return len(text) >= 10 and text[4] == "-" and _TIME.fullmatch(text) is not None


class TimesWatch:
    """Reads rows until every text field has had a value that is not a time; usually one row suffices."""

    def __init__(self) -> None:
        self._is_settled: dict[str, bool] = {}
        self.is_done = False

    def look(self, row: object) -> None:
        """Examine the next row of the file."""
        for path, text in _texts(row, ""):
            self._is_settled[path] = self._is_settled.get(path, False) or not looks_like_time(text)
        self.is_done = all(self._is_settled.values())

    @property
    def path(self) -> str | None:
        """The first field, such as `chosen.content`, in which every text so far looks like a time; None when there is none."""
        if self.is_done:
            return None
        return next((path for path, settled in self._is_settled.items() if not settled), None)


def _texts(value: object, column: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield column, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{column}.{key}" if column else key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, column)
