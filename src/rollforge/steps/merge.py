"""Merges shards to the classic single file, sorted by key, in one pass with little memory.

Only parts listed in end records are included. Gaps (owed rollouts) and duplicates (a key in two parts; the later one counts) are
reported. The shards are not changed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import DataError, Exit, UsageError
from rollforge.records import ROLLOUT_KEY, TASK_KEY, Index
from rollforge.runtime.on_error import OnError
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store import UNREADABLE, RunFiles, read_manifest, replacing
from rollforge.store.atomic import sync_file
from rollforge.store.find import near_run
from rollforge.store.leading_keys import leading_keys
from rollforge.store.manifest import State
from rollforge.store.rollout_parts import RunPart, parts_of
from rollforge.store.shard_plan import ShardPlan, array_text, read_plan
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import shard_states
from rollforge.tasks import TaskFile

HELD_BYTES = 64 << 20
"""Parts of a shard up to this size are held in memory; of a larger one only the places of its lines are."""
GROWN_BYTES = 4 << 20
"""Steps in which the memory for held parts grows."""
BLOCK = 8 << 20
SYNCED_BYTES = 64 << 20
"""Bytes between two early syncs, so that the disk writes while the next shards are read."""
MOST_NAMED = 20
"""Most gaps and duplicates that are listed; all are counted."""

Ints = NDArray[np.int64]


class _Key(msgspec.Struct):
    task: Index = msgspec.field(name=TASK_KEY)
    rollout: Index = msgspec.field(name=ROLLOUT_KEY)


class RolloutOfShard(msgspec.Struct, frozen=True, kw_only=True):
    """Key of a rollout."""

    task: int
    rollout: int
    shard: int


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a merge, with missing and duplicate rollouts."""

    run: str
    out: str
    shards: int
    expected: int
    written: int
    bytes: int
    missing: int
    """Number of rollouts that no shard has."""
    doubled: int
    """Number of rows omitted because a later one has their key."""
    unreadable_lines: int
    gaps: list[RolloutOfShard]
    """The first of the missing rollouts."""
    doubles: list[RolloutOfShard]
    short_parts: list[str]
    """Files with fewer bytes than their end records count, such as incomplete copies."""
    owed_shards: str
    """Shards to collect again, in Slurm's array syntax."""
    exit_code: Exit


def merge_run(run: str | Path, out: str | Path | None = None) -> MergeResult:
    """Write the rollouts of a run of shards as one file; by default `rollouts.jsonl` in its folder.

    Raises:
        UsageError: the run has no shards, or `out` contains something else.
        ResumeRefused: a shard belongs to another plan.
    """
    files = RunFiles(run)
    storage = DiskStorage(files.shards)
    plan = read_plan(storage) if files.is_sharded else None
    if plan is None:
        if not files.rollouts.exists() and not files.shards.exists():
            raise UsageError(
                f"{files.rollouts}: no such run{near_run(run)}", hint="give the folder that collect wrote to"
            )
        raise UsageError(
            f"{run}: no run of shards", hint="merge reads runs made with collect --shard, --workers or --on"
        )
    parts = parts_of(files)
    target = Path(out) if out is not None else files.rollouts
    _refuse_overwriting(files, target)
    tasks = TaskFile.open(files.tasks, count=plan.tasks)
    try:
        merger = _Merger(plan, tasks.ids)
        with replacing(target) as file:
            merger.write(_by_shard(parts.rollouts, len(plan)), file)
        _merge_failures(parts.failures, target)
    finally:
        tasks.close()
    states = list(shard_states(storage, plan))
    again = [one.shard + plan.first_number for one in states if one.state in ("stale", "owed", "open")]
    result = MergeResult(
        run=str(run),
        out=str(target),
        shards=len(plan),
        expected=plan.tasks * plan.samples,
        written=merger.written,
        bytes=target.stat().st_size,
        missing=merger.missing,
        doubled=merger.doubled,
        unreadable_lines=merger.unreadable,
        gaps=merger.gaps,
        doubles=merger.doubles,
        short_parts=[str(part.path) for part in parts.rollouts if part.size() > part.path.stat().st_size],
        owed_shards=array_text(again),
        exit_code=Exit.INCOMPLETE if merger.missing else Exit.DONE,
    )
    merged = RunFiles(target)
    if merged.tasks != files.tasks:
        with files.tasks.open("rb") as sent, replacing(merged.tasks) as copy:
            shutil.copyfileobj(sent, copy, 1 << 20)
    _write_manifest(files, merged, result, is_running=any(one.state == "open" for one in states))
    return result


def _refuse_overwriting(files: RunFiles, target: Path) -> None:
    """Raise if the target exists and is not an earlier merge of this run, since it may be a valuable run."""
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"name the file: -o {target / files.rollouts.name}")
    merged = RunFiles(target)
    if merged.rollouts == files.rollouts or not target.exists():
        return
    mine, other = read_manifest(files), read_manifest(merged)
    if mine is None or other is None or mine.created != other.created:
        raise UsageError(f"{target} exists and is no merge of {files.name}", hint="choose another -o")


def _by_shard(parts: Sequence[RunPart], count: int) -> list[list[RunPart]]:
    parts_by_shard: list[list[RunPart]] = [[] for _ in range(count)]
    for part in parts:
        parts_by_shard[int(part.path.parent.parent.name)].append(part)
    return parts_by_shard


def _merge_failures(parts: Sequence[RunPart], target: Path) -> None:
    """Merge failures in shard order; no file without failures."""
    merged = RunFiles(target).failures
    if not parts:
        return
    with replacing(merged) as file:
        for part in parts:
            file.writelines(part.lines())


def _write_manifest(files: RunFiles, merged: RunFiles, result: MergeResult, *, is_running: bool) -> None:
    """Record the run's progress in the manifest for readers of the single file; a live driver writes its own."""
    manifest = read_manifest(files)
    if manifest is None or (is_running and merged.manifest == files.manifest):
        return
    state: State = "done" if not result.missing else "incomplete"
    manifest.state, manifest.updated = state, time.time()
    manifest.finished = result.written
    manifest.write(merged)


class _Merger:
    """Writes shard after shard; if task numbers do not ascend over shards, all shards at once."""

    def __init__(self, plan: ShardPlan, ids: Ints) -> None:
        self.written = self.missing = self.doubled = self.unreadable = 0
        self.gaps: list[RolloutOfShard] = []
        self.doubles: list[RolloutOfShard] = []
        self._plan = plan
        self._ids = ids[: plan.tasks]
        self._memory = bytearray()
        """Holds the parts of one shard after the other: fresh memory for each would cost as much as reading them."""

    def write(self, parts_by_shard: Sequence[list[RunPart]], file: BinaryIO) -> None:
        if bool((np.diff(self._ids) > 0).all()):
            with ThreadPoolExecutor(1) as pool:
                disk = _EarlyDisk(pool, file)
                for shard, parts in enumerate(parts_by_shard):
                    within = self._plan.ranges[shard]
                    self._write_some(parts, self._ids[within.first : within.end], file)
                    disk.begin()
                disk.wait()
        else:
            self._write_some([part for parts in parts_by_shard for part in parts], np.sort(self._ids), file)

    def _write_some(self, parts: Sequence[RunPart], ids: Ints, file: BinaryIO) -> None:
        """Write the rows of these parts in the order of their keys; `ids` are the tasks of the parts, ascending."""
        with _Rows(parts, self._memory) as rows:
            self.unreadable += rows.unreadable
            position = np.searchsorted(ids, rows.task)
            is_ours = (position < len(ids)) & (rows.sample < self._plan.samples)
            is_ours[is_ours] = ids[position[is_ours]] == rows.task[is_ours]
            key = np.where(is_ours, position * self._plan.samples + rows.sample, -1)
            order = np.argsort(key, kind="stable")
            order = order[key[order] >= 0]
            ordered = key[order]
            is_last = np.r_[ordered[1:] != ordered[:-1], True] if len(ordered) else np.zeros(0, dtype=bool)
            self._name_doubles(ordered[~is_last], ids)
            self._name_gaps(ordered[is_last], ids)
            rows.copy(order[is_last], file)
            self.written += int(is_last.sum())

    def _name_doubles(self, keys: Ints, ids: Ints) -> None:
        self.doubled += len(keys)
        self.doubles += self._named(keys, ids, MOST_NAMED - len(self.doubles))

    def _name_gaps(self, keys: Ints, ids: Ints) -> None:
        is_missing = np.ones(len(ids) * self._plan.samples, dtype=bool)
        is_missing[keys] = False
        self.missing += int(is_missing.sum())
        self.gaps += self._named(np.flatnonzero(is_missing)[:MOST_NAMED], ids, MOST_NAMED - len(self.gaps))

    def _named(self, keys: Ints, ids: Ints, most: int) -> list[RolloutOfShard]:
        gaps = []
        for key in keys[: max(most, 0)].tolist():
            task = int(ids[key // self._plan.samples])
            position = np.flatnonzero(self._ids == task)[:1]
            shard = int(self._plan.shard_of(position)[0])
            gaps.append(RolloutOfShard(task=task, rollout=key % self._plan.samples, shard=shard))
        return gaps


class _EarlyDisk:
    """Syncs a growing file to disk in the background. The final sync is up to the caller.

    The kernel reports a failed write only once per open file, so the result of every sync must be checked.
    """

    def __init__(self, pool: ThreadPoolExecutor, file: BinaryIO) -> None:
        self._pool = pool
        self._file = file
        self._begun = 0
        self._syncing: Future[None] | None = None

    def begin(self) -> None:
        """Start a sync if enough was written since the last one and none is running; raises if the last one failed."""
        size = self._file.tell()
        if size - self._begun >= SYNCED_BYTES and (self._syncing is None or self._syncing.done()):
            self.wait()
            self._begun, self._syncing = size, self._pool.submit(sync_file, self._file.fileno())

    def wait(self) -> None:
        """Wait for the running sync; raises if it failed."""
        if self._syncing is not None:
            self._syncing.result()


class _Rows:
    """The lines of some parts by key: their bytes, in `memory`, when they are few, else only their places."""

    def __init__(self, parts: Sequence[RunPart], memory: bytearray) -> None:
        self.unreadable = 0
        self._memory = memory
        self._held = 0
        self._files: list[FileIO] = []
        columns: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
        with OnError(self.__exit__):
            for part in parts:
                self._files.append(part.path.open("rb", buffering=0))
            sizes = [_size(part, file) for part, file in zip(parts, self._files, strict=True)]
            self._is_held = sum(sizes) <= HELD_BYTES
            if self._is_held and sum(sizes) > len(memory):
                memory += bytes(-(-(sum(sizes) - len(memory)) // GROWN_BYTES) * GROWN_BYTES)
            for number, size in enumerate(sizes):
                columns += self._read(number, size)
        joined = (
            [np.concatenate([np.zeros(0, np.int64), *some]) for some in zip(*columns, strict=True)]
            if columns
            else []
        )
        empty = np.zeros(0, np.int64)
        self.task, self.sample, self._source, self._start, self._end = joined or [empty] * 5

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def _read(self, number: int, size: int) -> Iterator[tuple[Ints, Ints, Ints, Ints, Ints]]:
        """Keys and places of a part's lines: in the memory if parts are held, else in the file, block after block."""
        if self._is_held:
            first = self._held
            with memoryview(self._memory) as view:
                while count := self._files[number].readinto(view[self._held : first + size]):
                    self._held += count
                with view[first : self._held] as text:
                    yield self._scan(text, source=0, shift=first)
            return
        offset = 0
        while offset < size:
            data = self._pread(number, offset, min(BLOCK, size - offset))
            while not (whole := data.rfind(b"\n") + 1) and offset + len(data) < size:
                data += self._pread(number, offset + len(data), min(BLOCK, size - offset - len(data)))
            if not whole:
                return
            yield self._scan(memoryview(data)[:whole], source=number, shift=offset)
            offset += whole

    def _pread(self, number: int, offset: int, count: int) -> bytes:
        """Some bytes of a part, at least one.

        Raises:
            DataError: the part ends before them.
        """
        file = self._files[number]
        data = os.pread(file.fileno(), count, offset)
        if not data:
            raise DataError(f"{file.name} became shorter while it was read", hint="merge again")
        return data

    def _scan(self, text: memoryview, *, source: int, shift: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Keys and places of the lines that are rows."""
        task, sample, end = leading_keys(text).T.copy()
        start = np.zeros_like(end)
        start[1:] = end[:-1]
        for line in np.flatnonzero(task < 0).tolist():
            if (row := self._decoded(bytes(text[start[line] : end[line]]))) is not None:
                task[line], sample[line] = row.task, row.rollout
        rows = np.flatnonzero(task >= 0)
        return task[rows], sample[rows], np.full(len(rows), source), start[rows] + shift, end[rows] + shift

    def _decoded(self, line: bytes) -> _Key | None:
        """The key of a line that does not begin with it; None for an invalid row."""
        try:
            row = decode_json(line, _Key)
        except UNREADABLE:
            self.unreadable += bool(line.strip())
            return None
        return row if row.task >= 0 and row.rollout >= 0 else None

    def copy(self, rows: Ints, file: BinaryIO) -> None:
        """Write lines in this order; adjacent lines of a file are copied together."""
        if self._is_held:
            with memoryview(self._memory) as view:
                file.writelines(view[start:end] for _, start, end in self._spans(rows))
            return
        for source, start, end in self._spans(rows):
            while start < end:
                data = self._pread(source, start, min(BLOCK, end - start))
                file.write(data)
                start += len(data)

    def _spans(self, rows: Ints) -> Iterator[tuple[int, int, int]]:
        source, start, end = self._source[rows], self._start[rows], self._end[rows]
        if not len(rows):
            return
        breaks = np.flatnonzero((source[1:] != source[:-1]) | (start[1:] != end[:-1])) + 1
        firsts, lasts = np.r_[0, breaks], np.r_[breaks, len(rows)] - 1
        yield from zip(source[firsts].tolist(), start[firsts].tolist(), end[lasts].tolist(), strict=True)


def _size(part: RunPart, file: FileIO) -> int:
    """Bytes to read: no more than there are, since a part that was copied incompletely is shorter than recorded."""
    return min(part.size(), os.fstat(file.fileno()).st_size)
