"""This module opens a run's index."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.errors import UsageError
from rollforge.index import head_start, loading
from rollforge.index.ahead import beside
from rollforge.index.cache import Cache, OpenCache
from rollforge.index.fresh import BUDGET, Room
from rollforge.index.ranges import readers
from rollforge.index.sources import find_runs, read_manifest
from rollforge.interrupts import held_back
from rollforge.store import RunFiles

if TYPE_CHECKING:
    from rollforge.index.view import Index


def open_index(
    runs: str | Path | Sequence[str | Path],
    *,
    verifier: str | None = None,
    workers: int | None = None,
    needed_next: Sequence[str] = (),
    at_hand: bool = False,
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows that have
            none, the newest later one.
        workers: readers at once for the pass over the text; by default one per core for large files.
        needed_next: modules to load beside the index: while the text is read, where several read it.
        at_hand: hold the columns of what had to be read now, if they are few enough: for those who go through all of them.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    files = find_runs(runs)  # what is asked for is understood before the libraries behind an index are loaded
    room = Room(BUDGET if at_hand else 0)
    opened = _read_beside_loading(files, workers, room, needed_next)
    from rollforge.index.view import Index

    index = Index(files, verifier=verifier, workers=workers, opened=opened, room=room)
    head_start.forget()
    return index


def _read_beside_loading(
    files: Sequence[RunFiles], workers: int | None, room: Room, needed_next: Sequence[str]
) -> dict[Path, OpenCache]:
    """Where several read at once, they begin while numpy and Arrow are loaded, which takes as long as reading 200 MB does."""
    stale = [] if "rollforge.index.view" in sys.modules else _worth_a_thread(files, workers)
    for run in files if stale else ():
        read_manifest(run)  # what is wrong with one is told before anything is read
    opened: dict[Path, OpenCache] = {}

    def read() -> None:
        for cache in stale:
            opened[cache.path] = cache.open(workers, room)

    needed = ("rollforge.index.view", *needed_next)
    with held_back():
        if not stale:
            _load(needed)
            return opened
        _load(["rollforge.index.parallel"])
        with loading.by_this_thread():
            wait = beside(read, "rollforge-reading")
            _load(["rollforge.index.part_tables", *needed])
    wait()
    return opened


def _load(names: Iterable[str]) -> None:
    for name in names:
        import_module(name)


def _worth_a_thread(files: Sequence[RunFiles], workers: int | None) -> list[Cache]:
    """The indexes of rollouts that are not up to date, and of which several read the text."""
    many = [run for run in files if readers(run.rollouts.stat().st_size, workers) > 1]
    caches = [Cache(run.rollouts, "rollouts", run.index) for run in many]
    return [cache for cache in caches if not cache.is_fresh()]
