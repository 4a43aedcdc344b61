"""The step `import`: other tools' logs become a run, so that checks, probes, reports and exports work on them.

Tasks are numbered in the order in which they appear, samples of a task in the order of the log. The files appear complete or not
at all: they are written beside the target and renamed, the manifest last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import Struct

from rollforge import __version__
from rollforge.errors import DataError, UsageError
from rollforge.importers.base import OTHER_LOGS, ImportedRollout, load_importer
from rollforge.json_shapes import FailureRowJson, OwnJson, ResponseJson, RowJson
from rollforge.records import (
    ATTEMPT_KEY,
    FAILURE_KEY,
    OWN_KEY,
    PARAMS_KEY,
    ROLLOUT_KEY,
    TASK_KEY,
    TERMINAL_KEY,
    Verdict,
    to_json,
)
from rollforge.store import Manifest, RunFiles, replacing
from rollforge.store.atomic import make_directory
from rollforge.store.manifest import TaskInput


class ImportResult(Struct, frozen=True, kw_only=True):
    """Counts of an import."""

    run: str
    tasks: int
    rollouts: int
    judged: int
    unjudged: int
    failed: int
    notes: list[str]


class _Writer:
    """Numbers tasks and samples, and writes tasks, rollouts and failures."""

    def __init__(self, rollouts: BinaryIO, tasks: BinaryIO, failures: BinaryIO) -> None:
        self._rollouts, self._tasks, self._failures = rollouts, tasks, failures
        self._number_by_task: dict[str, int] = {}
        self._samples: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.models: set[str] = set()
        self.read = 0
        """Rollouts and failures written so far."""
        self.scores: dict[str, None] = {}

    @property
    def task_count(self) -> int:
        return len(self._number_by_task)

    @property
    def most_samples(self) -> int:
        return max(self._samples.values(), default=0)

    def add(self, one: ImportedRollout) -> None:
        """Write one rollout, or its failure row."""
        number = self._number(one)
        self.scores.update(dict.fromkeys(one.scores))
        sample = self._samples[number]
        self._samples[number] += 1
        if isinstance(one.model, str) and one.model:
            self.models.add(one.model)
        if one.failure is not None:
            self.counts["failed"] += 1
            self._failures.write(to_json(_failure(one, number, sample)) + b"\n")
            self.read += 1
            return
        is_judged = one.verdict is not None and one.verdict.reward is not None
        self.counts["judged" if is_judged else "unjudged"] += 1
        if not one.output:
            self.counts["without a trajectory"] += 1
        self._rollouts.write(to_json(_row(one, number, sample)) + b"\n")
        self.read += 1

    def _number(self, one: ImportedRollout) -> int:
        number = self._number_by_task.get(one.task)
        if number is None:
            number = self._number_by_task[one.task] = len(self._number_by_task)
            fields = {name: value for name, value in one.task_fields.items() if value is not None}
            self._tasks.write(
                to_json({TASK_KEY: number, PARAMS_KEY: {"input": one.prompt}, **fields}) + b"\n"
            )
        return number


def import_run(kind: str, path: str | Path, out: str | Path, *, reward: str | None = None) -> ImportResult:
    """Make a run of another tool's log.

    Args:
        kind: `inspect`, `verifiers` or `harbor`.
        reward: name of the score that becomes the reward, if there are several.
    """
    read = load_importer(kind)
    files = RunFiles(out)
    for taken in (files.rollouts, files.manifest, files.failures):
        if taken.exists():
            raise UsageError(f"{taken} exists", hint="choose another -o: an import makes a run of its own")
    make_directory(files.rollouts.parent)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(replacing(path)) for path in (files.rollouts, files.tasks, files.failures)
        ]
        writer = _Writer(*opened)
        with _naming_the_record(str(path), writer):
            for one in read(Path(path), reward):
                writer.add(one)
        if not writer.task_count:
            raise DataError(
                f"{path}: nothing to import", hint="name the log file or folder that the tool wrote"
            )
        if reward is not None and writer.scores and reward not in writer.scores:
            raise UsageError(
                f"{path}: there is no score {reward!r}", hint=f"there are {', '.join(writer.scores)}"
            )
    if not writer.counts["failed"]:
        files.failures.unlink(missing_ok=True)
    _write_manifest(files, writer, kind, str(path), reward)
    return _result(writer, str(out))


@contextmanager
def _naming_the_record(path: str, writer: _Writer) -> Iterator[None]:
    """Turns an error from a record of an unexpected shape into a `DataError` with its number: importers do not check types."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: record {writer.read + 1} has an unexpected shape: {error}", hint=OTHER_LOGS
        ) from error


def _result(writer: _Writer, run: str) -> ImportResult:
    counts, notes = writer.counts, []
    if missing := counts["without a trajectory"]:
        notes.append(
            f"{missing:,} rollouts have no trajectory: they can be profiled, and nothing can be trained on them"
        )
    return ImportResult(
        run=run,
        tasks=writer.task_count,
        rollouts=counts["judged"] + counts["unjudged"],
        judged=counts["judged"],
        unjudged=counts["unjudged"],
        failed=counts["failed"],
        notes=notes,
    )


def _write_manifest(files: RunFiles, writer: _Writer, kind: str, path: str, reward: str | None) -> None:
    counts = writer.counts
    now = time.time()
    finished = counts["judged"] + counts["unjudged"]
    Manifest(
        rollforge=__version__,
        state="done",
        created=now,
        updated=now,
        fingerprint={"imported": kind, "from": path},
        config={"imported": kind, "input": path, "reward": reward},
        input=TaskInput(path=path, tasks=writer.task_count),
        tasks=writer.task_count,
        samples=max(1, writer.most_samples),
        expected=finished + counts["failed"],
        finished=finished,
        judged=counts["judged"],
        unjudged=counts["unjudged"],
        failed={"agent": counts["failed"]} if counts["failed"] else {},
        model_names=sorted(writer.models),
    ).write(files)


def _row(one: ImportedRollout, number: int, sample: int) -> RowJson:
    verdict = one.verdict
    own: OwnJson = {"verifier": one.verifier if verdict is not None else None}
    if one.started is not None:
        own["started"] = one.started
    if one.seconds is not None:
        own["seconds"] = one.seconds
    named: RowJson = {TASK_KEY: number, ROLLOUT_KEY: sample, "agent_ref": {"name": one.agent}}
    made: RowJson = {PARAMS_KEY: {"input": one.prompt}, "response": _response(one), OWN_KEY: own}
    fields = (verdict or Verdict()).to_fields()
    return cast("RowJson", {**named, **fields, **made})


def _failure(one: ImportedRollout, number: int, sample: int) -> FailureRowJson:
    return {
        TASK_KEY: number,
        ROLLOUT_KEY: sample,
        ATTEMPT_KEY: 0,
        FAILURE_KEY: "agent",
        TERMINAL_KEY: True,
        "class": "agent",
        "boundary": "agent",
        "message": (one.failure or "")[:2000],
        "response": _response(one) if one.output else None,
    }


def _response(one: ImportedRollout) -> ResponseJson:
    return {
        "object": "response",
        "status": "completed" if one.incomplete is None else "incomplete",
        "incomplete_details": None if one.incomplete is None else {"reason": one.incomplete},
        "error": None,
        "model": one.model,
        "output": one.output,
        "usage": one.usage,
    }
