"""This module opens a run's index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.errors import UsageError
from rollforge.index.sources import find_runs

if TYPE_CHECKING:
    from rollforge.index.view import Index


def open_index(
    runs: str | Path | Sequence[str | Path], *, verifier: str | None = None, workers: int | None = None
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows that have
            none, the newest later one.
        workers: readers at once for the pass over the text; by default one per core for large files.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    files = find_runs(runs)  # what is asked for is understood before the libraries behind an index are loaded
    from rollforge.index.view import Index

    return Index(files, verifier=verifier, workers=workers)
