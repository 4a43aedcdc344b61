"""The files of a run that have an index; updating one of them alone, in another process; and what an update did."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from rollforge.errors import UsageError
from rollforge.index.cache import IndexCache
from rollforge.index.schema import Kind
from rollforge.index.state import VERSION, IndexedFiles, State, read_checked
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


# What an update did

Change = Literal["built", "extended", "current"]


class IndexUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a run after an update, and what the update did."""

    run: str
    index: Change
    """built: nothing of an older index is left in that of the rollouts; extended: new lines or files were added."""
    rows: int
    """Rollouts in the files, duplicates included."""
    rejected_lines: int
    files: int
    """Indexed files: rollouts, tasks, failures and verdicts."""
    bytes: int
    """Size of the index on disk."""


def recorded_states(files: RunFiles) -> dict[Path, State]:
    """The recorded state of each index of a run, by folder; without indexes of another version."""
    caches = [IndexCache(part.path, kind, part.index, part.length) for kind, part in indexed_parts(files)]
    states = {cache.folder: read_checked(cache.folder / "state.json", State) for cache in caches}
    return {
        folder: state for folder, state in states.items() if state is not None and state.version == VERSION
    }


def index_update(run: str, files: IndexedFiles, before: Mapping[Path, State]) -> IndexUpdate:
    """Compare the indexed files of a run with the states recorded before they were opened."""
    indexed = [file for files_of_kind in files.by_kind.values() for file in files_of_kind]
    changes = {file.folder: _change(before.get(file.folder), file.state) for file in indexed}
    index: Change = "extended"
    if all(changes[file.folder] == "built" for file in files.by_kind["rollouts"]):
        index = "built"
    elif all(change == "current" for change in changes.values()):
        index = "current"
    return IndexUpdate(
        run=run,
        index=index,
        rows=files.count("rollouts"),
        rejected_lines=sum(file.state.count("rejected") for file in indexed),
        files=len(indexed),
        bytes=_bytes_below(files.folders()),
    )


def _change(before: State | None, after: State) -> Change:
    if before is None:
        return "built"
    if before.build == after.build:
        return "current"
    older_names = {part.name for part in before.parts()}
    return "extended" if any(part.name in older_names for part in after.parts()) else "built"


def _bytes_below(folders: Sequence[Path]) -> int:
    """Size of all files below the folders, of which one may be inside another."""
    size = 0
    for path in {path for folder in folders for path in folder.rglob("*")}:
        with suppress(FileNotFoundError):  # another command removes what it replaced
            status = path.lstat()
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size
