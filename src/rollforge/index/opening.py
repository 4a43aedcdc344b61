"""This module opens a run's index."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from rollforge.errors import UsageError
from rollforge.index import loading
from rollforge.index.cache import Cache
from rollforge.index.readers import readers
from rollforge.index.sources import find_runs, read_manifest
from rollforge.store import RunFiles

if TYPE_CHECKING:
    from rollforge.index.view import Index


def open_index(
    runs: str | Path | Sequence[str | Path],
    *,
    verifier: str | None = None,
    workers: int | None = None,
    needed_next: Sequence[str] = (),
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows that have
            none, the newest later one.
        workers: readers at once for the pass over the text; by default one per core for large files.
        needed_next: modules to load beside the index: while the text is read, where several read it.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    files = find_runs(runs)  # what is asked for is understood before the libraries behind an index are loaded
    with _reading_begun(files, workers):
        from rollforge.index.view import Index

        for name in needed_next:
            import_module(name)
    return Index(files, verifier=verifier, workers=workers)


@contextmanager
def _reading_begun(files: Sequence[RunFiles], workers: int | None) -> Iterator[None]:
    """Where several read at once, they begin while numpy and Arrow are loaded, which takes as long as reading 200 MB does."""
    stale = [] if "rollforge.index.view" in sys.modules else _worth_a_thread(files, workers)
    if not stale:
        yield
        return
    for run in files:
        read_manifest(run)  # what is wrong with one is told before anything is read
    import_module("rollforge.index.parallel")
    errors: list[Exception] = []

    def read() -> None:
        try:
            for cache in stale:
                cache.refresh(workers)
        except Exception as error:  # noqa: BLE001  (raised in the thread that waits)
            errors.append(error)

    thread = Thread(target=read, name="rollforge-reading", daemon=True)
    with loading.by_this_thread():
        thread.start()
        for name in loading.LATER:
            import_module(f"rollforge.index.{name}")
    yield
    thread.join()
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # of what was removed, opening the index tells
            raise error


def _worth_a_thread(files: Sequence[RunFiles], workers: int | None) -> list[Cache]:
    """The indexes of rollouts that are not up to date, and of which several read the text."""
    many = [run for run in files if readers(run.rollouts.stat().st_size, workers) > 1]
    caches = [Cache(run.rollouts, "rollouts", run.index) for run in many]
    return [cache for cache in caches if not cache.is_fresh()]
