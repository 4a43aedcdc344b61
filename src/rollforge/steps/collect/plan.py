"""for a new or a resumed run.

All task rows are read and checked before the first model call and streamed to `rollouts_tasks.jsonl`, never held in memory.
`resume.py` decides whether an existing run may go on.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.adaptive.design import SamplingDesign
from rollforge.agents.base import Preparation
from rollforge.errors import DataError, UsageError
from rollforge.records import (
    JsonFields,
    from_json,
    to_json,
)
from rollforge.runtime.on_error import OnError
from rollforge.runtime.typed_decoding import convert
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.resume import (
    SUSPECT,
    VERIFIER_SOURCE,
    fingerprint_of_run,
    has_not_begun,
    mend,
    move_aside,
    refuse_changes,
    refuse_foreign_rollouts,
    refuse_rewritten,
)
from rollforge.steps.collect.task_writer import BadTaskLine, BadTasks, TaskWriter
from rollforge.store import (
    Ledger,
    Manifest,
    RunFiles,
    read_manifest,
    replacing,
)
from rollforge.store.atomic import make_directory
from rollforge.store.manifest import TaskInput
from rollforge.tasks import (
    HubChoice,
    HubSplit,
    TaskFile,
    TaskSource,
    open_tasks,
)
from rollforge.text_safety.outgoing import outgoing_bytes

logger = logging.getLogger(__name__)


DesignOf = Callable[[CollectOptions, Manifest | None], SamplingDesign | None]
RowsOf = Callable[[int | None], Iterator[JsonFields] | None]


class CollectPlan(msgspec.Struct, kw_only=True):
    """The work of a collection."""

    files: RunFiles
    tasks: TaskFile
    ledger: Ledger
    order: NDArray[np.int64]
    """Task positions in dispatch order."""
    manifest: Manifest
    is_resumed: bool
    bad_lines: list[BadTaskLine]
    notes: list[str]
    """Messages for the user about the files of the resumed run."""
    design: SamplingDesign | None = None
    """The sampling design, if it is not uniform."""

    def owed(self, attempts: int) -> int:
        """Number of owed rollouts, if each may fail `attempts` times."""
        return self.ledger.owed(attempts)


def make_plan(
    options: CollectOptions,
    *,
    needs: tuple[str, ...],
    verifier_fingerprint: str | None,
    version: str,
    command: list[str],
    agent: Preparation | None = None,
    is_rehearsal: bool = False,
    shards: RunFiles | None = None,
    design_of: DesignOf = lambda options, old: None,
    rows_of: RowsOf | None = None,
) -> CollectPlan:
    """The plan for a new run, or for the rest of an existing one. The caller holds the run's lock.

    A dry run reads and checks everything but does not change the disk.

    Args:
        shards: The files of a sharded run: its rollouts are in the shards and are not read, and no lock is held. design_of:
            returns the sampling design for the options and the old manifest. rows_of: returns up to a number of rows from an
            environment that has its own; refused together with an input file.
    """
    files = shards or RunFiles(options.out)
    agent = agent or Preparation()
    notes: list[str] = []
    old = None if options.fresh else read_manifest(files)
    if old is not None and shards is None and has_not_begun(files, old):
        old = None
    if old is None and not options.fresh and shards is None:
        refuse_foreign_rollouts(files, notes, is_rehearsal=is_rehearsal)
    folder = None if is_rehearsal else files.rollouts.parent
    spooled = _spool(options, folder, rows_of)
    try:
        source = _open_source(options, old, spooled)
        digest = source.digest
        fingerprint = fingerprint_of_run(options, source, verifier_fingerprint) | agent.fingerprint
        fingerprint = from_json(outgoing_bytes(to_json(fingerprint)))  # as the manifest holds it
        if old is not None:
            before = {**old.fingerprint, "input": digest}
            if SUSPECT in old.extra and before.get(VERIFIER_SOURCE) != fingerprint[VERIFIER_SOURCE]:
                # The run stopped because of its verifier: one that was mended may go on.
                before[VERIFIER_SOURCE] = fingerprint[VERIFIER_SOURCE]
                notes.append(
                    "the verifier has changed since the run stopped; judge what it judged before again: "
                    f"rollforge verify {options.out} --verifier {options.verifier} --fresh"
                )
            refuse_changes(before, fingerprint, files)
        tasks, bad = _materialise(
            options, files, old, fingerprint, needs, source, is_rehearsal, agent=agent, notes=notes
        )
    finally:
        if spooled:
            Path(spooled).unlink(missing_ok=True)
    design = design_of(options, old)
    slots = options.samples if design is None else max(options.samples, design.most)
    ledger = Ledger(tasks.ids, slots)
    if old is not None and shards is None:
        if not is_rehearsal:
            notes += mend(files)
        ledger.read(files.rollouts, files.failures)
    manifest = old or Manifest(rollforge=version, created=time.time())
    manifest.rollforge, manifest.command, manifest.fingerprint = version, command, fingerprint
    manifest.config = options.to_config()
    manifest.tasks, manifest.samples, manifest.expected = len(tasks), slots, ledger.expected
    left_out = len(bad) or manifest.input.bad_lines
    manifest.input = TaskInput(path=options.input, digest=digest, tasks=len(tasks), bad_lines=left_out)
    if options.tasksets:
        manifest.input = msgspec.structs.replace(manifest.input, tasksets=options.tasksets)
    if source.choice is not None:
        hub = msgspec.to_builtins(source.choice)
        manifest.input = msgspec.structs.replace(manifest.input, commit=source.choice.commit, hub=hub)
        notes.append(
            f"{options.input} is commit {source.choice.commit}, and stays so when the run is resumed"
        )
    return CollectPlan(
        files=files,
        tasks=tasks,
        ledger=ledger,
        order=_order(options, len(tasks)),
        manifest=manifest,
        is_resumed=old is not None,
        bad_lines=bad,
        notes=notes,
        design=design,
    )


def _open_source(options: CollectOptions, old: Manifest | None, spooled: str | None) -> TaskSource:
    """Open the input; a resumed run uses the commit in its manifest."""
    earlier_choice = None
    part = HubSplit(options.split, options.hub_config)
    if old is not None and old.input.hub is not None and old.input.path == options.input:
        earlier_choice = convert(old.input.hub, HubChoice)
        if not part.allows(earlier_choice):
            earlier_choice = None
    return open_tasks(
        spooled or options.input, part=part, earlier_choice=earlier_choice, shown=options.input or options.env
    )


def _spool(options: CollectOptions, folder: Path | None, rows_of: RowsOf | None) -> str | None:
    """Copy stdin or the rows of an environment to disk, because the plan reads its input twice."""
    rows = rows_of(options.limit) if rows_of is not None else None
    if rows is not None and options.input:
        raise UsageError(
            f"--env {options.env} brings its own tasks, and -i {options.input} names others",
            hint="leave out -i to play the environment's tasks, or --env to collect those of the file",
        )
    if options.input != "-" and rows is None:
        if not options.input:
            raise UsageError(f"--env {options.env} brings no tasks of its own", hint="give them with -i FILE")
        return None
    if folder is not None:
        make_directory(folder)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".tasks.")  # private: it is deleted again
    with OnError(Path(name).unlink), os.fdopen(handle, "wb") as spool:
        if rows is None:
            shutil.copyfileobj(sys.stdin.buffer, spool, 1 << 20)
        else:
            spool.writelines(to_json(row) + b"\n" for row in rows)
    return name


def _materialise(
    options: CollectOptions,
    files: RunFiles,
    old: Manifest | None,
    fingerprint: JsonFields,
    needs: tuple[str, ...],
    source: TaskSource,
    is_rehearsal: bool,
    *,
    agent: Preparation,
    notes: list[str],
) -> tuple[TaskFile, list[BadTaskLine]]:
    """Open the existing tasks file if it is correct; otherwise write a new one and replace it atomically."""
    same = old is not None and {**old.fingerprint, "samples": 0} == {**fingerprint, "samples": 0}
    if old is not None and same and files.tasks.exists():
        try:
            return TaskFile.open(files.tasks, count=old.tasks), []
        except DataError as error:
            logger.warning("%s; it is made again from %s", error, options.input)
    folder = None if is_rehearsal else files.tasks.parent
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "tasks.jsonl").open("w+b") as file:
            writer = _write_tasks(options, file, needs, source, agent, notes)
            refuse_rewritten(files, old, fingerprint, file)
            return writer.task_file(Path(file.name)), writer.bad
    with replacing(files.tasks) as file:
        writer = _write_tasks(options, file, needs, source, agent, notes)
        refuse_rewritten(files, old, fingerprint, file)
        if options.fresh:
            move_aside(files)
    return writer.task_file(files.tasks), writer.bad


def _write_tasks(
    options: CollectOptions,
    file: BinaryIO,
    needs: tuple[str, ...],
    source: TaskSource,
    agent: Preparation,
    notes: list[str],
) -> TaskWriter:
    writer = TaskWriter(options, file, needs, agent)
    writer.write_all(source)
    file.flush()
    if writer.bad and not options.skip_bad:
        raise BadTasks(writer.bad)
    if not writer.ids:
        raise UsageError(
            f"{options.input}: no tasks: it is empty, or every line is bad",
            hint=f"see its lines: rollforge validate {options.input}",
        )
    notes += [f"--agent-map or --fan-out {name}: no row has this name" for name in sorted(writer.unrouted)]
    return writer


def _order(options: CollectOptions, count: int) -> NDArray[np.int64]:
    if options.shuffle:
        return np.random.default_rng(options.seed).permutation(count)
    return np.arange(count)
