"""This module works out what a run owes: the tasks as sent, the fingerprint that guards resume, the ledger.

All task rows are read and checked before the first model call, streamed to `rollouts_tasks.jsonl`, never held. A run that exists
is resumed when its fingerprint matches, and refused, naming what differs, when it does not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.agents.base import Preparation
from rollforge.agents.transcript import tool_names
from rollforge.errors import DataError, ResumeRefused, UsageError
from rollforge.records import PARAMS_KEY, TASK_KEY, JsonObject, to_json
from rollforge.steps.collect.options import CollectOptions, verifier_name
from rollforge.store import Ledger, Manifest, RunFiles, read_manifest
from rollforge.store.atomic import sync_directory
from rollforge.tasks import BadRow, PromptTemplate, TaskFile, read_lines, to_task_row

logger = logging.getLogger(__name__)

GROWING = ("samples", "limit")
"""Keys of the fingerprint that may grow when a run is resumed."""

SHOWN_BAD_LINES = 20


class BadLine(msgspec.Struct, frozen=True):
    """A line of the task file that cannot be a task."""

    file: str
    line: int
    what: str
    hint: str = ""


class BadTasks(DataError):
    """The task file has bad lines; `lines` holds them all."""

    def __init__(self, lines: list[BadLine]) -> None:
        shown = "\n".join(
            f"  {bad.file}:{bad.line}: {bad.what}{f' ({bad.hint})' if bad.hint else ''}"
            for bad in lines[:SHOWN_BAD_LINES]
        )
        more = f"\n  … and {len(lines) - SHOWN_BAD_LINES:,} more" if len(lines) > SHOWN_BAD_LINES else ""
        super().__init__(
            f"{len(lines):,} bad {'line' if len(lines) == 1 else 'lines'} in the task file; nothing was sent\n{shown}{more}",
            hint="mend them, or leave them out with --skip-bad; --json lists them all",
        )
        self.lines = lines


class Plan(msgspec.Struct, kw_only=True):
    """What is to be done."""

    files: RunFiles
    tasks: TaskFile
    ledger: Ledger
    order: NDArray[np.int64]
    """Positions in the order in which they are dispatched."""
    manifest: Manifest
    is_resumed: bool
    bad_lines: list[BadLine]

    def owed(self, attempts: int) -> int:
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
) -> Plan:
    """The plan for a new run, or for the rest of an existing one. The caller holds the run's lock.

    A rehearsal reads and checks everything and leaves the disk as it was.
    """
    files = RunFiles(options.out)
    agent = agent or Preparation()
    old = None if options.fresh else read_manifest(files)
    if old is None and not options.fresh and files.rollouts.exists() and files.rollouts.stat().st_size:
        raise UsageError(
            f"{files.rollouts} exists, but was not collected by rollforge",
            hint="choose another -o, or move it aside with --fresh",
        )
    folder = None if is_rehearsal else files.rollouts.parent
    spooled = _spool_stdin(folder) if options.input == "-" else None
    try:
        digest = _digest(Path(spooled or _existing(options.input, "check -i/--input; `-` reads stdin")))
        fingerprint = _fingerprint(options, digest, verifier_fingerprint) | agent.fingerprint
        if old is not None:
            refuse_changes(old.fingerprint, fingerprint, files)
        tasks, bad = _materialise(options, files, old, fingerprint, needs, spooled, is_rehearsal, agent=agent)
    finally:
        if spooled:
            Path(spooled).unlink(missing_ok=True)
    ledger = Ledger(tasks.ids, options.samples)
    if old is not None:
        ledger.read(files.rollouts, files.failures)
    manifest = old or Manifest(rollforge=version, created=time.time())
    manifest.rollforge, manifest.command, manifest.fingerprint = version, command, fingerprint
    manifest.config = options.to_config()
    manifest.tasks, manifest.samples, manifest.expected = len(tasks), options.samples, ledger.expected
    left_out = len(bad) or manifest.input.get("bad_lines", 0)
    manifest.input = {"path": options.input, "digest": digest, "tasks": len(tasks), "bad_lines": left_out}
    return Plan(
        files=files,
        tasks=tasks,
        ledger=ledger,
        order=_order(options, len(tasks)),
        manifest=manifest,
        is_resumed=old is not None,
        bad_lines=bad,
    )


def refuse_changes(old: JsonObject, new: JsonObject, files: RunFiles) -> None:
    """Raise `ResumeRefused` unless the run on disk was made from the same; `samples` and `limit` may grow."""
    differing = []
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        may_grow = key in GROWING and before is not None and (now is None or now >= before)
        if before != now and not may_grow:
            differing.append((key, before, now))
    if differing:
        changes = "\n".join(
            f"  {key}: was {_short(before)}, is {_short(now)}" for key, before, now in differing
        )
        raise ResumeRefused(
            f"{files.rollouts} was collected with other settings; nothing was changed\n{changes}",
            keys=tuple(key for key, _, _ in differing),
            hint="use the old settings to resume, another -o for a new run, or --fresh to move the old run aside"
            + (
                "; to judge again with another verifier: rollforge verify"
                if any(key.startswith("verifier") for key, _, _ in differing)
                else ""
            ),
        )


def _short(value: Any) -> str:
    text = "not set" if value is None else to_json(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


def _fingerprint(options: CollectOptions, digest: str, verifier_fingerprint: str | None) -> JsonObject:
    template = None
    if options.prompt_template:
        template = Path(_existing(options.prompt_template, "check --prompt-template")).read_bytes()
    fingerprint: JsonObject = {
        "input": digest,
        "model": options.model,
        "step": options.step,
        "samples": options.samples,
        "limit": options.limit,
        "shuffle": options.seed if options.shuffle else None,
        "prompt_template": hashlib.sha256(template).hexdigest()[:16] if template else None,
        "logprobs": options.logprobs,
        "skip_bad": options.skip_bad,
        "verifier": verifier_name(options.verifier),
        "verifier_source": verifier_fingerprint,
    }
    return fingerprint | dict(_flat(PARAMS_KEY, options.overrides))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}", item)
    else:
        yield prefix, value


def _existing(source: str, hint: str) -> str:
    if not Path(source).is_file():
        raise UsageError(f"{source}: no such file", hint=hint)
    return source


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(4 << 20):
            digest.update(block)
    return digest.hexdigest()


def _spool_stdin(folder: Path | None) -> str:
    """stdin can be read once only: keep it on disk for the two passes over it."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".stdin.")
    with os.fdopen(handle, "wb") as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool, 1 << 20)
    return name


def _materialise(
    options: CollectOptions,
    files: RunFiles,
    old: Manifest | None,
    fingerprint: JsonObject,
    needs: tuple[str, ...],
    spooled: str | None,
    is_rehearsal: bool,
    *,
    agent: Preparation,
) -> tuple[TaskFile, list[BadLine]]:
    """The tasks file: the one on disk when it is already right, else a new one put in its place as a whole."""
    same = old is not None and {**old.fingerprint, "samples": 0} == {**fingerprint, "samples": 0}
    if old is not None and same and files.tasks.exists():
        try:
            return TaskFile.open(files.tasks, count=old.tasks), []
        except DataError as error:
            logger.warning("%s; it is made again from %s", error, options.input)
    folder = None if is_rehearsal else files.tasks.parent
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{files.tasks.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as file:
            writer = _TaskWriter(options, file, needs, agent)
            writer.write_all(spooled or options.input, options.input)
            file.flush()
            os.fsync(file.fileno())
        if writer.bad and not options.skip_bad:
            raise BadTasks(writer.bad)
        if not writer.ids:
            raise UsageError(f"{options.input}: no tasks", hint="the file is empty, or every line is bad")
        if folder is None:
            return writer.task_file(Path(name)), writer.bad
        if options.fresh:
            move_aside(files)
        Path(name).chmod(0o644)
        Path(name).replace(files.tasks)
        sync_directory(folder)
    finally:
        Path(name).unlink(missing_ok=True)
    return writer.task_file(files.tasks), writer.bad


class _TaskWriter:
    """One pass over the input: check, convert, write, remember places and ids."""

    def __init__(
        self, options: CollectOptions, file: BinaryIO, needs: tuple[str, ...], agent: Preparation
    ) -> None:
        self.bad: list[BadLine] = []
        self.ids = array("q")
        self._offsets = array("q")
        self._lines = array("q")
        self._is_stamped = False
        self._offset = 0
        self._options = options
        self._file = file
        self._needs = needs
        self._agent = agent
        self._template = PromptTemplate.load(options.prompt_template) if options.prompt_template else None

    def write_all(self, source: str, name: str) -> None:
        chosen = self._choice(source)
        for ordinal, (number, line) in enumerate(read_lines(source)):
            if chosen is None and self._options.limit is not None and len(self.ids) >= self._options.limit:
                break
            if chosen is not None and not chosen[ordinal]:
                continue
            try:
                self._write(line, ordinal, number)
            except BadRow as error:
                self.bad.append(BadLine(name, number, str(error), error.hint))
        self._refuse_repeated_stamps(name)

    def _choice(self, source: str) -> NDArray[np.bool_] | None:
        """With --shuffle and --limit: which lines are drawn. A larger limit draws a superset."""
        if not (self._options.shuffle and self._options.limit is not None):
            return None
        count = sum(1 for _ in read_lines(source))
        chosen = np.zeros(count, dtype=np.bool_)
        chosen[np.random.default_rng(self._options.seed).permutation(count)[: self._options.limit]] = True
        return chosen

    def _write(self, line: bytes, ordinal: int, number: int) -> None:
        row = to_task_row(line, overrides=self._options.overrides, template=self._template, needs=self._needs)
        for field in self._agent.needs:
            if row.get(field) is None:
                raise BadRow(f"the agent needs the field {field!r}", hint=f"add {field!r} to the row")
        if self._agent.tools:
            offer_tools(row[PARAMS_KEY], self._agent.tools)
        row[TASK_KEY] = index = self._task_id(row, ordinal, number)
        data = to_json(row) + b"\n"
        self._file.write(data)
        self.ids.append(index)
        self._lines.append(number)
        self._offsets.append(self._offset)
        self._offset += len(data)

    def _task_id(self, row: JsonObject, ordinal: int, number: int) -> int:
        """The caller's own `_ng_task_index`, or the row's place in the file."""
        stamp = row.get(TASK_KEY)
        if self.ids and (stamp is not None) != self._is_stamped:
            raise BadRow(f"only some rows have {TASK_KEY}", hint="stamp all rows, or none")
        if stamp is None:
            return ordinal
        if not isinstance(stamp, int) or isinstance(stamp, bool) or not 0 <= stamp < 1 << 63:
            raise BadRow(f"{TASK_KEY} is {stamp!r}", hint="a whole number from 0 on, of at most 63 bits")
        self._is_stamped = True
        return stamp

    def _refuse_repeated_stamps(self, name: str) -> None:
        """Two tasks under one index would share their rollouts: that cannot be skipped over."""
        ids = np.frombuffer(self.ids, np.int64)
        if not self._is_stamped or len(np.unique(ids)) == len(ids):
            return
        order = np.argsort(ids, kind="stable")
        repeats = order[1:][ids[order][1:] == ids[order][:-1]]
        raise BadTasks(
            [
                BadLine(
                    name,
                    self._lines[i],
                    f"{TASK_KEY} {ids[i]} is already that of an earlier line",
                    "-k repeats a task",
                )
                for i in sorted(repeats)
            ]
        )

    def task_file(self, path: Path) -> TaskFile:
        return TaskFile(path, np.frombuffer(self._offsets, np.int64), np.frombuffer(self.ids, np.int64))


def offer_tools(params: JsonObject, tools: list[JsonObject]) -> None:
    """Add tools to a task's params; where the row already words a tool of that name, its words stay."""
    own = params.get("tools") or []
    named = tool_names(params)
    params["tools"] = [*own, *(tool for tool in tools if tool["name"] not in named)]


def _order(options: CollectOptions, count: int) -> NDArray[np.int64]:
    if options.shuffle:
        return np.random.default_rng(options.seed).permutation(count)
    return np.arange(count)


def move_aside(files: RunFiles) -> Path | None:
    """Move the run's files into a directory of their own; nothing is deleted."""
    siblings = [files.rollouts, files.tasks, files.failures, files.verdicts, files.manifest, files.index]
    siblings += [files.reward_profiling, files.agent_metrics, files.aggregate_metrics]
    siblings += [files.metrics, files.experiences, files.evaluation]
    present = [path for path in siblings if path.exists()]
    if not present:
        return None
    target = files.rollouts.parent / f"{files.stem}_{time.strftime('%Y%m%d-%H%M%S')}"
    while target.exists():
        target = target.with_name(target.name + "x")
    target.mkdir(parents=True)
    for path in present:
        path.rename(target / path.name)
    sync_directory(files.rollouts.parent)
    return target
