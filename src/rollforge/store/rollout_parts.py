"""The files that make up a run: one rollouts file, or the parts of its shards, in shard order.

Readers must use only these parts: bytes beyond a part's length were written by a process that was believed dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollforge.errors import DataError
from rollforge.store.files import RunFiles
from rollforge.store.reading import lines_of
from rollforge.store.shard_plan import ShardPlan, read_plan
from rollforge.store.shard_storage import DiskStorage, lines_within, whole_length
from rollforge.store.shards import Epoch, read_epochs, refuse_other_plans, shard_name, shard_states


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rollouts, failures or verdicts."""

    path: Path
    length: int | None = None
    """Number of valid bytes; None means all, and the file may grow."""
    index: Path
    """Folder of its index."""

    def lines(self) -> Iterator[bytes]:
        """Its lines, each with a newline."""
        length = self.length if self.length is not None else whole_length(self.path)
        return lines_within(self.path, length or 0)

    def all_lines(self) -> Iterator[bytes]:
        """Its lines, including a last one without a newline if the file is the whole run."""
        return lines_of(self.path) if self.length is None else self.lines()

    def size(self) -> int:
        """Current number of valid bytes."""
        return self.length if self.length is not None else self.path.stat().st_size


class RunParts(msgspec.Struct, frozen=True, kw_only=True):
    """All valid files of a run except tasks and manifest."""

    rollouts: list[RunPart] = []
    failures: list[RunPart] = []
    verdicts: list[RunPart] = []


def parts_of(files: RunFiles) -> RunParts:
    """The current parts of a run; without rollouts if there are none yet.

    Raises:
        ResumeRefused: a shard was collected under another plan.
        DataError: a file that an end record counts is missing.
    """
    if not files.is_sharded:
        return RunParts(
            rollouts=_whole(files, files.rollouts),
            failures=_whole(files, files.failures),
            verdicts=_verdicts(files),
        )
    storage = DiskStorage(files.shards)
    plan = read_plan(storage)
    assert plan is not None, files.shards
    all_parts = RunParts(failures=_whole(files, files.verify_failures), verdicts=_verdicts(files))
    for shard in range(len(plan)):
        epochs = read_epochs(storage, shard)
        refuse_other_plans(plan, shard, epochs)
        for epoch in epochs:
            for kind, parts in (("rollouts", all_parts.rollouts), ("failures", all_parts.failures)):
                part = _part(files, kind, shard, epoch)
                if part is not None:
                    parts.append(part)
    return all_parts


def is_being_collected(files: RunFiles) -> bool:
    """Whether a live process owns one of the shards."""
    storage = DiskStorage(files.shards)
    plan = read_plan(storage)
    return plan is not None and any(one.state == "open" for one in shard_states(storage, plan))


def shard_plan_of(files: RunFiles) -> ShardPlan | None:
    """The plan of a sharded run; None for a single-file run."""
    return read_plan(DiskStorage(files.shards)) if files.is_sharded else None


def _verdicts(files: RunFiles) -> list[RunPart]:
    """The verdicts file, and unjoined verdicts of workers."""
    parts = _whole(files, files.verdicts)
    if files.verdict_parts.is_dir():
        for path in sorted(files.verdict_parts.glob("*/verdicts.jsonl")):
            if path.stat().st_size:
                parts.append(RunPart(path=path, index=files.index / "verdict_parts" / path.parent.name))
    return parts


def _whole(files: RunFiles, path: Path) -> list[RunPart]:
    return [RunPart(path=path, index=files.index)] if path.is_file() else []


def _part(files: RunFiles, kind: str, shard: int, epoch: Epoch) -> RunPart | None:
    """The valid part of one epoch; None if it wrote nothing."""
    folder = files.rollouts.parent / "index" / shard_name(shard) / f"e{epoch.number}"
    if epoch.end is None:
        path = files.shards / shard_name(shard) / f"e{epoch.number}" / f"{kind}.jsonl"
        return RunPart(path=path, index=folder) if path.is_file() and path.stat().st_size else None
    counted = epoch.end.files.get(kind)
    if counted is None or not counted.length:
        return None
    path = files.shards / counted.name
    if not path.is_file():
        raise DataError(
            f"{path} is missing; the end record of the shard counts {counted.length:,} bytes of it",
            hint=f"copy it here again, or remove {files.shards / shard_name(shard)} and collect shard {shard} again",
        )
    return RunPart(path=path, length=counted.length, index=folder)
