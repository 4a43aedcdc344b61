"""A run of shards, opened: its plan fixed once, its tasks on disk, the work of one shard.

Many processes may open the same new run at once. Each writes the tasks to a file of its own; the process that creates `plan.json`
first determines the plan; the others compare their settings with it, and continue or are refused. No process waits for another.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from rollforge.agents.base import Preparation
from rollforge.errors import DataError, ResumeRefused, UsageError
from rollforge.records import JsonObject
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.plan import CollectPlan, make_plan
from rollforge.steps.collect.resume import move_aside, refuse_changes
from rollforge.steps.collect.task_writer import BadTaskLine
from rollforge.store import Ledger, Manifest, RunFiles, read_manifest, run_id
from rollforge.store.atomic import refuse_links, sync_directory
from rollforge.store.bucket_storage import storage_of
from rollforge.store.find import refuse_devices
from rollforge.store.shard_plan import (
    ShardChoice,
    ShardPlan,
    create_plan,
    default_count,
    even_ranges,
    read_plan,
)
from rollforge.store.shard_storage import ShardStorage
from rollforge.store.shards import EpochEnd, Lease
from rollforge.store.shipping import copy_of
from rollforge.tasks import TaskFile

logger = logging.getLogger(__name__)


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a run's plan besides the options: verifier, agent, version."""

    needs: tuple[str, ...]
    verifier_fingerprint: str | None
    version: str
    command: list[str]
    agent: Preparation


class ShardedRun(msgspec.Struct, kw_only=True):
    """A sharded run that this process may work on."""

    files: RunFiles
    storage: ShardStorage
    plan: ShardPlan
    tasks: TaskFile
    manifest: Manifest
    is_resumed: bool
    bad_lines: list[BadTaskLine]
    notes: list[str]


class _StagedFiles(RunFiles):
    """The run's files with a tasks file private to this process, until the plan is fixed."""

    @property
    def tasks(self) -> Path:
        return self.rollouts.with_name(f".rollouts_tasks.{socket.gethostname()}.{os.getpid()}.jsonl")


def open_run(options: CollectOptions, inputs: PlanInputs, choice: ShardChoice | None) -> ShardedRun:
    """Open the sharded run at `options.out`, or create it.

    Raises:
        ResumeRefused: the run was made with other settings, or in one file.
        UsageError: `out` is no folder.
    """
    files = RunFiles(options.out)
    if files.rollouts.name != "rollouts.jsonl":
        raise UsageError(f"{options.out}: shards need a folder", hint="give -o FOLDER, not a file")
    if options.input == "-":
        raise UsageError(
            "stdin cannot be split into shards", hint="write the tasks to a file: -i tasks.jsonl"
        )
    refuse_devices(files)
    refuse_links(files.shards, files.artifacts)
    storage = storage_of(files.shards)
    if options.fresh and choice is not None:
        raise UsageError(
            "--fresh and --shard: every shard would move the others aside", hint="remove the folder by hand"
        )
    if options.fresh:
        _move_aside(files)
        options = replace(options, fresh=False)
    plan = read_plan(storage)
    is_resumed = plan is not None
    if plan is None:
        _refuse_single_file(files)
    if plan is None or not _has_tasks(files, plan) or not files.manifest.exists():
        plan = _make(options, inputs, choice, files, storage, plan)
    made = make_plan(
        options,
        needs=inputs.needs,
        verifier_fingerprint=inputs.verifier_fingerprint,
        version=inputs.version,
        command=inputs.command,
        agent=inputs.agent,
        is_rehearsal=True,
        shards=files,
    )
    _refuse_other_settings(plan, made.manifest.fingerprint, files)
    return ShardedRun(
        files=files,
        storage=storage,
        plan=plan,
        tasks=made.tasks,
        manifest=made.manifest,
        is_resumed=is_resumed,
        bad_lines=made.bad_lines,
        notes=made.notes,
    )


def _move_aside(files: RunFiles) -> None:
    """Implement `--fresh`: move the shards aside with the run's other files."""
    target = move_aside(files)
    if files.shards.exists():
        target = target or files.rollouts.parent / f"{files.stem}_{time.strftime('%Y%m%d-%H%M%S')}"
        target.mkdir(exist_ok=True)
        files.shards.rename(target / files.shards.name)
        index = files.rollouts.parent / "index"
        if index.exists():
            index.rename(target / "index")
        sync_directory(target)
        sync_directory(files.rollouts.parent)


def _refuse_single_file(files: RunFiles) -> None:
    manifest = read_manifest(files)
    has_rows = files.rollouts.exists() and files.rollouts.stat().st_size > 0
    if manifest is not None and (has_rows or manifest.state == "running"):
        raise ResumeRefused(
            f"{files.rollouts} was begun as a single file, and a run is not split later",
            keys=("shards",),
            hint="resume it without --shard, --workers and --on, or give another -o",
        )
    if has_rows:
        raise UsageError(f"{files.rollouts} exists, and is not of a run of shards", hint="choose another -o")


def _has_tasks(files: RunFiles, plan: ShardPlan) -> bool:
    return files.tasks.exists() and files.tasks.stat().st_size == plan.tasks_bytes


def _make(
    options: CollectOptions,
    inputs: PlanInputs,
    choice: ShardChoice | None,
    files: RunFiles,
    storage: ShardStorage,
    plan: ShardPlan | None,
) -> ShardPlan:
    """Fix the plan unless another process does so first, then publish its files."""
    if choice is not None and plan is None:
        choice.check_new()
    staged = _StagedFiles(options.out)
    try:
        made = make_plan(
            options,
            needs=inputs.needs,
            verifier_fingerprint=inputs.verifier_fingerprint,
            version=inputs.version,
            command=inputs.command,
            agent=inputs.agent,
            shards=staged,
        )
        made.tasks.close()
        if plan is None:
            mine = _plan_of(made, staged, choice)
            create_plan(storage, mine)
            plan = read_plan(storage)
            assert plan is not None, files.shards
        _refuse_other_settings(plan, made.manifest.fingerprint, files)
        _publish(files, staged, made, storage, plan)
    finally:
        staged.tasks.unlink(missing_ok=True)
    return plan


def _plan_of(made: CollectPlan, staged: RunFiles, choice: ShardChoice | None) -> ShardPlan:
    tasks, samples = len(made.tasks), made.manifest.samples
    return ShardPlan(
        run=run_id(staged, made.manifest),
        created=made.manifest.created,
        fingerprint=made.manifest.fingerprint,
        tasks=tasks,
        samples=samples,
        first_number=choice.first if choice else 0,
        tasks_bytes=staged.tasks.stat().st_size,
        tasks_sha256=_sha256(staged.tasks),
        ranges=even_ranges(tasks, choice.count if choice else default_count(tasks, samples)),
    )


def _publish(
    files: RunFiles, staged: RunFiles, made: CollectPlan, storage: ShardStorage, plan: ShardPlan
) -> None:
    """Move tasks and manifest into place. They are identical for every process that gets here."""
    if _sha256(staged.tasks) != plan.tasks_sha256:
        raise DataError(
            f"{files.tasks}: the tasks made from the input now are not those of the plan",
            hint="the settings are the same, so the versions of rollforge may differ",
        )
    if not _has_tasks(files, plan):
        staged.tasks.replace(files.tasks)
        if (copy := copy_of(files.tasks)) is not None:
            copy.replace(files.tasks)
    manifest = made.manifest
    manifest.created, manifest.updated = plan.created, time.time()
    manifest.state, manifest.pid, manifest.host = "incomplete", 0, ""
    manifest.extra["shards"] = len(plan)
    if not files.manifest.exists():
        manifest.write(files)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_other_settings(plan: ShardPlan, fingerprint: JsonObject, files: RunFiles) -> None:
    """Refuse settings that differ from the plan's, including those that may grow in a single-file run."""
    refuse_changes(plan.fingerprint, fingerprint, files)
    grown = [key for key in fingerprint if plan.fingerprint.get(key) != fingerprint[key]]
    if grown:
        raise ResumeRefused(
            f"{files.name}: {', '.join(grown)} cannot grow in a run of shards; its plan is fixed",
            keys=tuple(grown),
            hint="give another -o for a new run",
        )


def plan_of_shard(run: ShardedRun, lease: Lease, options: CollectOptions) -> CollectPlan:
    """Owed rollouts of one shard: all except those that earlier epochs finished."""
    within = run.plan.ranges[lease.shard]
    tasks = run.tasks.part(within.first, within.end)
    ledger = Ledger(tasks.ids, run.plan.samples)
    ledger.read(lease.earlier("rollouts"), lease.earlier("failures"))
    order = np.arange(len(tasks))
    if options.shuffle:
        order = np.random.default_rng([options.seed, lease.shard]).permutation(len(tasks))
    return CollectPlan(
        files=run.files,
        tasks=tasks,
        ledger=ledger,
        order=order,
        manifest=run.manifest,
        is_resumed=bool(lease.before),
        bad_lines=[],
        notes=[],
    )


def failed_of_shard(lease: Lease, ledger: Ledger) -> dict[str, int]:
    """Number of a shard's rollouts that failed and never finished, by class; reads all failures of the shard."""
    own = lease.storage.counted(f"{lease.folder}/failures.jsonl")
    lines = chain(lease.earlier("failures"), lease.storage.lines(own) if own is not None else ())
    return ledger.failed_by_class(lines)


def is_complete(end: EpochEnd | None) -> bool:
    """Whether an epoch ended with nothing owed."""
    return end is not None and end.state == "complete"
