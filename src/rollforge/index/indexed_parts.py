"""The files of a run that have an index, and updating one of them alone: a unit of work for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rollforge.errors import UsageError
from rollforge.index.cache import IndexCache
from rollforge.index.schema import Kind
from rollforge.store import RunFiles
from rollforge.store.find import find_runs, tasks_file
from rollforge.store.rollout_parts import RunPart, parts_of


class IndexedPart(NamedTuple):
    """A file of a run that has an index."""

    kind: Kind
    part: RunPart


def indexed_parts(files: RunFiles) -> list[IndexedPart]:
    """The existing files of a run; those of a run of shards in shard order."""
    parts = parts_of(files)
    if not parts.rollouts:
        raise UsageError(
            f"{files.name}: no shard has written a rollout yet", hint=f"rollforge status {files.name}"
        )
    indexed = [IndexedPart("rollouts", part) for part in parts.rollouts]
    tasks = tasks_file(files)
    if tasks is not None:
        indexed.append(IndexedPart("tasks", RunPart(path=tasks, index=files.index)))
    indexed += [IndexedPart("failures", part) for part in parts.failures]
    return indexed + [IndexedPart("verdicts", part) for part in parts.verdicts]


class IndexUnit(msgspec.Struct, frozen=True):
    """A reference to one indexed part of a run that can be sent to another process."""

    kind: Kind
    path: str
    folder: str
    length: int | None


def index_units(runs: str | Path | Sequence[str | Path]) -> list[IndexUnit]:
    """All indexed parts of the runs, with absolute paths."""
    return [
        IndexUnit(kind, str(part.path.absolute()), str(part.index.absolute()), part.length)
        for files in find_runs(runs)
        for kind, part in indexed_parts(files)
    ]


def update_index(unit: IndexUnit) -> None:
    """Bring the index of one part up to date."""
    cache = IndexCache(Path(unit.path), unit.kind, Path(unit.folder), unit.length)
    cache.update().release()
