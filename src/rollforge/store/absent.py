"""Files whose bytes are elsewhere: a placeholder of the right size is here, and byte ranges are fetched when they are asked for.

Only readers that go through an index may open such a run; the index says where each line is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class AbsentText(Protocol):
    """The bytes of a file that is not here."""

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes at each (offset, length), in the order asked."""
        ...


_texts: dict[Path, AbsentText] = {}


def register(path: Path, text: AbsentText) -> None:
    """Read the bytes of `path` from `text` for the rest of this process's life."""
    _texts[path.absolute()] = text


def absent_text(path: Path) -> AbsentText | None:
    """Where the bytes of a file are; None for a file that is here."""
    return _texts.get(path.absolute()) if _texts else None
