"""Files whose bytes are elsewhere: a local placeholder has the right size, and byte ranges are fetched on demand.

Such a run can only be read through its index, which contains the offset of each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class AbsentText(Protocol):
    """The remote bytes of a placeholder file."""

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes at each (offset, length), in the given order."""
        ...


_texts: dict[Path, AbsentText] = {}


def register(path: Path, text: AbsentText) -> None:
    """Read the bytes of `path` from `text` until the process ends."""
    _texts[path.absolute()] = text


def absent_text(path: Path) -> AbsentText | None:
    """The remote bytes of a file; None for an ordinary file."""
    return _texts.get(path.absolute()) if _texts else None
