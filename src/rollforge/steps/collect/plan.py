"""The plan of a run: the tasks as sent, the fingerprint that guards resume, the ledger of owed rollouts.

All task rows are read and checked before the first model call and streamed to `rollouts_tasks.jsonl`, never held in memory. An
existing run is resumed when its fingerprint matches, and refused, naming what differs, when it does not. A task file may grow: rows
may be added at its end, as long as the old rows become the same tasks.
"""

from __future__ import annotations

import hashlib
import itertools
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
from rollforge.records import OWN_KEY, PARAMS_KEY, TASK_KEY, JsonFields, JsonObject, from_json, to_json
from rollforge.redaction import SECRETS
from rollforge.registry import did_you_mean
from rollforge.steps.collect.options import CollectOptions, verifier_name
from rollforge.store import (
    UNREADABLE,
    Ledger,
    Manifest,
    RunFiles,
    damaged_file,
    mend_tail,
    read_manifest,
    replacing,
)
from rollforge.store.atomic import make_directory, sync_directory
from rollforge.store.manifest import TaskInput
from rollforge.store.reading import lines_of
from rollforge.tasks import BadRow, PromptTemplate, TaskFile, read_lines, to_task_row

logger = logging.getLogger(__name__)

SUSPECT = "suspect"
"""The manifest's key for the window of rollouts that the detectors do not trust."""
VERIFIER_SOURCE = "verifier_source"
GROWING = ("samples", "limit")
"""Keys of the fingerprint that may grow when a run is resumed."""

COMPARE_BYTES = 1 << 20

SHOWN_BAD_LINES = 20


class BadTaskLine(msgspec.Struct, frozen=True):
    """A line of the task file that cannot be a task."""

    file: str
    line: int
    what: str
    hint: str = ""


def _and_more(count: int) -> str:
    return f"; the same in {count:,} more {'line' if count == 1 else 'lines'}" if count else ""


class BadTasks(DataError):
    """The task file has bad lines; `lines` holds them all."""

    def __init__(self, lines: list[BadTaskLine]) -> None:
        faults: dict[tuple[str, str | None], list[BadTaskLine]] = {}
        for bad in lines:
            faults.setdefault((bad.what, bad.hint), []).append(bad)
        shown = "\n".join(
            f"  {same[0].file}:{same[0].line}: {what}{f' ({hint})' if hint else ''}{_and_more(len(same) - 1)}"
            for (what, hint), same in list(faults.items())[:SHOWN_BAD_LINES]
        )
        left = sum(len(same) for same in list(faults.values())[SHOWN_BAD_LINES:])
        more = f"\n  … and {left:,} more" if left else ""
        super().__init__(
            f"{len(lines):,} bad {'line' if len(lines) == 1 else 'lines'} in the task file; nothing was sent\n{shown}{more}",
            hint="mend them, or leave them out with --skip-bad; --json lists them all",
        )
        self.lines = lines


class CollectPlan(msgspec.Struct, kw_only=True):
    """What a collection has to do."""

    files: RunFiles
    tasks: TaskFile
    ledger: Ledger
    order: NDArray[np.int64]
    """Positions in the order in which they are dispatched."""
    manifest: Manifest
    is_resumed: bool
    bad_lines: list[BadTaskLine]
    notes: list[str]
    """What a user should know about the files the run was resumed from."""

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
) -> CollectPlan:
    """The plan for a new run, or for the rest of an existing one. The caller holds the run's lock.

    A rehearsal reads and checks everything and leaves the disk as it was.
    """
    files = RunFiles(options.out)
    agent = agent or Preparation()
    notes: list[str] = []
    old = None if options.fresh else read_manifest(files)
    if old is None and not options.fresh:
        _clear_the_place(files, notes, is_rehearsal=is_rehearsal)
    folder = None if is_rehearsal else files.rollouts.parent
    spooled = _spool_stdin(folder) if options.input == "-" else None
    try:
        digest = _digest(Path(spooled or _existing(options.input, "check -i/--input; `-` reads stdin")))
        fingerprint = _fingerprint(options, digest, verifier_fingerprint) | agent.fingerprint
        fingerprint = from_json(SECRETS.data(to_json(fingerprint)))  # as the manifest holds it
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
        tasks, bad = _materialise(options, files, old, fingerprint, needs, spooled, is_rehearsal, agent=agent)
    finally:
        if spooled:
            Path(spooled).unlink(missing_ok=True)
    ledger = Ledger(tasks.ids, options.samples)
    if old is not None:
        if not is_rehearsal:
            notes += _mend(files)
        ledger.read(files.rollouts, files.failures)
    manifest = old or Manifest(rollforge=version, created=time.time())
    manifest.rollforge, manifest.command, manifest.fingerprint = version, command, fingerprint
    manifest.config = options.to_config()
    manifest.tasks, manifest.samples, manifest.expected = len(tasks), options.samples, ledger.expected
    left_out = len(bad) or manifest.input.bad_lines
    manifest.input = TaskInput(path=options.input, digest=digest, tasks=len(tasks), bad_lines=left_out)
    return CollectPlan(
        files=files,
        tasks=tasks,
        ledger=ledger,
        order=_order(options, len(tasks)),
        manifest=manifest,
        is_resumed=old is not None,
        bad_lines=bad,
        notes=notes,
    )


def _clear_the_place(files: RunFiles, notes: list[str], *, is_rehearsal: bool) -> None:
    """Refuse to append to somebody else's file; move aside a run of our own that has lost its manifest."""
    if not files.rollouts.exists() or not files.rollouts.stat().st_size:
        return
    if not _is_ours(files.rollouts):
        raise UsageError(
            f"{files.rollouts} exists, but was not collected by rollforge",
            hint="choose another -o, or move it aside with --fresh",
        )
    if is_rehearsal:
        notes.append(f"{files.rollouts} has no manifest: it would be moved aside")
    else:
        target = move_aside(files)
        notes.append(f"the run that was here has no manifest and cannot be resumed; it was moved to {target}")


def _is_ours(path: Path) -> bool:
    """Whether the first readable row carries rollforge's own key."""
    for line in itertools.islice(lines_of(path), 100):
        try:
            row = from_json(line)
        except UNREADABLE:
            continue
        return isinstance(row, dict) and OWN_KEY in row
    return False


def _mend(files: RunFiles) -> list[str]:
    """Cut what a crash left at the end of the run's files; returns what was cut, for the summary."""
    notes = []
    for path in (files.rollouts, files.failures):
        cut = mend_tail(path)
        if cut:
            notes.append(
                f"cut {cut:,} damaged bytes off the end of {path.name}; they are in {damaged_file(path).name}"
            )
    return notes


def refuse_changes(old: JsonObject, new: JsonObject, files: RunFiles) -> None:
    """Raise `ResumeRefused` unless both fingerprints agree; `samples` and `limit` may grow."""
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


def _fingerprint(options: CollectOptions, digest: str, verifier_fingerprint: str | None) -> JsonFields:
    template = None
    if options.prompt_template:
        template = Path(_existing(options.prompt_template, "check --prompt-template")).read_bytes()
    fingerprint: JsonFields = {
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
        VERIFIER_SOURCE: verifier_fingerprint,
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
    """Copy stdin to disk: it can be read only once, and the plan reads its input twice."""
    if folder is not None:
        make_directory(folder)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".stdin.")  # private: it is deleted again
    with os.fdopen(handle, "wb") as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool, 1 << 20)
    return name


def _materialise(
    options: CollectOptions,
    files: RunFiles,
    old: Manifest | None,
    fingerprint: JsonFields,
    needs: tuple[str, ...],
    spooled: str | None,
    is_rehearsal: bool,
    *,
    agent: Preparation,
) -> tuple[TaskFile, list[BadTaskLine]]:
    """Open the tasks file on disk when it is already right; else write a new one and replace it as a whole."""
    same = old is not None and {**old.fingerprint, "samples": 0} == {**fingerprint, "samples": 0}
    if old is not None and same and files.tasks.exists():
        try:
            return TaskFile.open(files.tasks, count=old.tasks), []
        except DataError as error:
            logger.warning("%s; it is made again from %s", error, options.input)
    folder = None if is_rehearsal else files.tasks.parent
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "tasks.jsonl").open("w+b") as file:
            writer = _write_tasks(options, file, needs, spooled, agent)
            _refuse_rewritten(files, old, fingerprint, file)
            return writer.task_file(Path(file.name)), writer.bad
    with replacing(files.tasks) as file:
        writer = _write_tasks(options, file, needs, spooled, agent)
        _refuse_rewritten(files, old, fingerprint, file)
        if options.fresh:
            move_aside(files)
    return writer.task_file(files.tasks), writer.bad


def _write_tasks(
    options: CollectOptions, file: BinaryIO, needs: tuple[str, ...], spooled: str | None, agent: Preparation
) -> _TaskWriter:
    writer = _TaskWriter(options, file, needs, agent)
    writer.write_all(spooled or options.input, options.input)
    file.flush()
    if writer.bad and not options.skip_bad:
        raise BadTasks(writer.bad)
    if not writer.ids:
        raise UsageError(f"{options.input}: no tasks", hint="the file is empty, or every line is bad")
    return writer


def _refuse_rewritten(
    files: RunFiles, old: Manifest | None, fingerprint: JsonFields, new_tasks: BinaryIO
) -> None:
    """Refuse another task file, unless the tasks sent so far are the beginning of the new ones: then it has only grown."""
    if old is None or old.fingerprint.get("input") == fingerprint["input"]:
        return
    if not files.tasks.exists() or not _begins_with(new_tasks, files.tasks):
        refuse_changes(old.fingerprint, fingerprint, files)


def _begins_with(file: BinaryIO, prefix: Path) -> bool:
    file.seek(0)
    with prefix.open("rb") as wanted:
        while block := wanted.read(COMPARE_BYTES):
            if file.read(len(block)) != block:
                file.seek(0, os.SEEK_END)
                return False
    file.seek(0, os.SEEK_END)
    return True


class _TaskWriter:
    """One pass over the input: check and convert each row, write it, keep its offset and id."""

    def __init__(
        self, options: CollectOptions, file: BinaryIO, needs: tuple[str, ...], agent: Preparation
    ) -> None:
        self.bad: list[BadTaskLine] = []
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
                self.bad.append(BadTaskLine(name, number, str(error), error.hint))
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
        row = to_task_row(
            line,
            overrides=self._options.overrides,
            template=self._template,
            needs=self._needs,
            may_lack_prompt=self._agent.may_lack_prompt,
        )
        if self._agent.agent_name is not None:
            row["agent_ref"] = {"name": self._agent.agent_name}
        check_agent(row, self._agent.agents)
        for field in self._agent.needs:
            if row.get(field) is None:
                raise BadRow(f"the agent needs the field {field!r}", hint=f"add {field!r} to the row")
        if self._agent.tools:
            offer_tools(row[PARAMS_KEY], self._agent.tools)
        row[TASK_KEY] = index = self._task_id(row, ordinal, number)
        data = SECRETS.data(to_json(row)) + b"\n"
        self._file.write(data)
        self.ids.append(index)
        self._lines.append(number)
        self._offsets.append(self._offset)
        self._offset += len(data)

    def _task_id(self, row: JsonFields, ordinal: int, number: int) -> int:
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
                BadTaskLine(
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


def check_agent(row: JsonFields, known: frozenset[str] | None) -> None:
    """Raise `BadRow` for a row that names an agent which nobody runs."""
    ref = row.get("agent_ref")
    name = ref.get("name") if isinstance(ref, dict) else None
    if known is not None and isinstance(name, str) and name not in known:
        raise BadRow(
            f"the head server knows no agent {name!r}{did_you_mean(name, sorted(known))}",
            hint=f"it knows: {', '.join(sorted(known))}; --agent-name NAME takes one for all rows",
            path="agent_ref.name",
        )


def offer_tools(params: JsonObject, tools: list[JsonObject]) -> None:
    """Add tools to a task's params; a tool that the row already defines under the same name stays as it is."""
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
    siblings += [damaged_file(files.rollouts), damaged_file(files.failures)]
    present = [path for path in siblings if path.exists() or path.is_symlink()]
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
