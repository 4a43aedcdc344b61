"""This module opens a run's index, and begins what needs no index before the libraries behind one are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.errors import UsageError
from rollforge.index.digests import Digests
from rollforge.index.readers import readers
from rollforge.index.sources import find_runs
from rollforge.store import RunFiles

if TYPE_CHECKING:
    from rollforge.index.view import Index


def open_index(
    runs: str | Path | Sequence[str | Path],
    *,
    verifier: str | None = None,
    workers: int | None = None,
    with_digests: bool = False,
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows that have
            none, the newest later one.
        workers: readers at once for the pass over the text; by default one per core for large files.
        with_digests: a file that must be read whole is hashed too, for the data sets that may be made from it.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    files = find_runs(runs)
    with ExitStack() as held:
        digests = held.enter_context(Digests()) if with_digests else None
        if digests is not None:
            digests.begin(_never_read(files, workers))
        from rollforge.index.view import Index

        index = Index(files, verifier=verifier, workers=workers, digests=digests)
        held.pop_all()  # the index has them now
    return index


def _never_read(runs: Sequence[RunFiles], workers: int | None) -> list[tuple[Path, Path]]:
    """The files that several will read whole, each with the folder of its index."""
    found = []
    for files in runs:
        if readers(files.rollouts.stat().st_size, workers) > 1 and _make(files.index):
            found.append((files.rollouts, files.index))
    return found


def _make(folder: Path) -> bool:
    """Whether there was no such folder, and now is."""
    try:
        folder.mkdir()
    except OSError:
        return False
    return True
