"""Makes experiences from a run: rollouts in, a file or a buffer of experiences out, through a pipeline.

Tasks go through in steps of `step_size`, whole groups together, in the order of their indices; later verdicts count, as in every
other command. The same run and options give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from rollforge.buffer import Buffer, open_buffer
from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience, RowSource, experiences_from_row, to_row
from rollforge.experience.from_rollout import USAGE
from rollforge.index import Index, open_index
from rollforge.json_shapes import OwnJson, RowJson, without
from rollforge.operators.chain import LedgerRow, Pipeline, read_pipeline
from rollforge.records import OWN_KEY, ROLLOUT_KEY, TASK_KEY, to_json
from rollforge.sinks.base import SinkOptions, Sinks, open_sinks
from rollforge.store import RunFiles, read_manifest, replacing, run_id
from rollforge.store.outputs import refuse_output
from rollforge.store.reading import read_row
from rollforge.text_safety.markup import result, table

_JUDGE = ("verifier", "fingerprint", "mode")
"""Columns that identify the verifier whose verdict counts."""


class ExperienceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Source, pipeline and destination of experiences."""

    run: str
    pipeline: str | None = None
    """TOML file of operators; None passes everything unchanged."""
    out: str | None = None
    """JSONL file; None means beside the run, unless a buffer is given."""
    buffer: str | None = None
    """A path or a `postgresql://` URL."""
    step_size: int = 64
    """Tasks that go through the pipeline together."""
    taskset: str = ""
    model_version: int | None = None
    per_turn: bool = False
    where: str | None = None
    verifier: str | None = None
    sinks: tuple[str, ...] = ("jsonl",)
    profile: str = "rollforge"
    dry_run: bool = False
    """Run the pipeline and count, write nothing."""


class ExperiencesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the experiences that were made."""

    run: str
    out: str | None
    buffer: str | None
    rollouts: int
    experiences_in: int
    experiences: int
    steps: int
    fidelity: dict[str, int]
    """Fidelity label → number of resulting experiences."""
    ledgers: list[LedgerRow]
    duplicates: int = 0
    """Number of experiences that the buffer already had."""

    def _repr_html_(self) -> str:
        rows = [
            ("rollouts", f"{self.rollouts:,}"),
            ("experiences made", f"{self.experiences_in:,}"),
            ("after the pipeline", f"{self.experiences:,}"),
            *((f"of them {label}", f"{count:,}") for label, count in self.fidelity.items()),
        ]
        # The buffer's address may hold a password, so it is not shown.
        target = self.out or ("buffer" if self.buffer else None)
        return result(f"{self.run} → {target}" if target else self.run, table(("", ""), rows))


def make_experiences(options: ExperienceOptions) -> ExperiencesResult:
    """Turn the run into experiences."""
    if options.step_size < 1:
        raise UsageError(f"--step-size must be at least 1, not {options.step_size}", hint="--step-size 64")
    if options.out is not None:
        refuse_output(options.out, reads=[options.run, *([options.pipeline] if options.pipeline else [])])
    pipeline = read_pipeline(options.pipeline) if options.pipeline else Pipeline([])
    files = RunFiles(options.run)
    with ExitStack() as stack:
        index = stack.enter_context(open_index(options.run, verifier=options.verifier))
        index.refuse_tasks()
        sinks = stack.enter_context(_open_sinks(options, files))
        writer = stack.enter_context(_Writer(options, files))
        source = _source(options, files)
        fidelity: Counter[str] = Counter()
        rollouts = seen = steps = 0
        for step, rows in enumerate(_steps(index, options), start=1):
            _refuse_odd(rows, files)
            made = [experience for row in rows for experience in experiences_from_row(row, source)]
            kept_experiences, metrics = pipeline.run(made)
            writer.write(kept_experiences)
            sinks.log(metrics, step=step)
            fidelity.update(experience.fidelity for experience in kept_experiences)
            rollouts, seen, steps = rollouts + len(rows), seen + len(made), step
        return ExperiencesResult(
            run=options.run,
            out=writer.commit(),
            buffer=options.buffer,
            rollouts=rollouts,
            experiences_in=seen,
            experiences=fidelity.total(),
            steps=steps,
            fidelity=dict(fidelity),
            ledgers=[ledger.to_row() for ledger in pipeline.ledgers],
            duplicates=writer.duplicates,
        )


def _refuse_odd(rows: Sequence[Mapping[str, object]], files: RunFiles) -> None:
    for row in rows:
        response = row.get("response")
        if response is not None and not isinstance(response, dict):
            raise DataError(
                f"{files.rollouts}: the response of task {row.get(TASK_KEY)}, rollout {row.get(ROLLOUT_KEY)} is a "
                f"{type(response).__name__}, not an object: are these rollouts?",
                hint=f"see the line: rollforge validate {files.rollouts}",
            )


def _source(options: ExperienceOptions, files: RunFiles) -> RowSource:
    return RowSource(
        run=run_id(files, read_manifest(files)),
        taskset=options.taskset,
        model_version=options.model_version,
        per_turn=options.per_turn,
    )


def run_name(files: RunFiles) -> str:
    """The run's name for sinks: its directory, or its file if that has a non-default name."""
    folder = files.rollouts.absolute().parent.name
    return folder if files.stem == "rollouts" else f"{folder}-{files.stem}"


def _open_sinks(options: ExperienceOptions, files: RunFiles) -> Sinks:
    where = SinkOptions(
        directory=files.rollouts.parent,
        metrics_file=files.metrics,
        run=run_name(files),
        config=msgspec.to_builtins(options),
    )
    return open_sinks(() if options.dry_run else options.sinks, where, profile=options.profile)


def _steps(index: Index, options: ExperienceOptions) -> Iterator[list[RowJson]]:
    """Rows of `step_size` tasks at a time, with the rewards and numbers that count."""
    numbers = [name for name in index.numbers if name not in ("reward", *USAGE) and "." not in name]
    index_columns = set(index.columns())
    columns = [
        "row",
        "task",
        "rollout",
        *_JUDGE,
        *(name for name in ("reward", *numbers) if name in index_columns),
    ]
    table = index.table(columns, where=options.where, order_by="task, rollout")
    if not table.num_rows and options.where is not None:
        raise UsageError(
            f"no rollout matches --where {options.where!r}", hint="ask for others, or leave --where out"
        )
    if not table.num_rows:
        return
    tasks = np.asarray(table.column("task"), dtype=np.int64)
    later = set(index.judged_later().tolist())
    of_rows = {name for name in numbers if index.is_of_rows(name)} if options.verifier else set()
    firsts = np.flatnonzero(np.diff(tasks, prepend=tasks[0] - 1))[:: options.step_size].tolist()
    for start, end in pairwise([*firsts, table.num_rows]):
        facts = table.slice(start, end - start).to_pylist()
        lines = index.read([fact["row"] for fact in facts])
        rows: list[RowJson] = []
        for line, fact in zip(lines, facts, strict=True):
            row = read_row(line)
            if fact["row"] in later:
                judge = {key: fact[key] for key in _JUDGE}
                row[OWN_KEY] = cast("OwnJson", {**(row.get(OWN_KEY) or {}), **judge})
                if options.verifier:  # numbers of another verifier go
                    row, fact = without(row, set(numbers)), without(fact, of_rows)
            rows.append(_joined(row, fact))
        yield rows


def _joined(row: RowJson, fact: dict[str, Any]) -> RowJson:
    """The row merged with the index's facts: later verdicts, and keys that older files lack."""
    named: RowJson = {
        **row,
        TASK_KEY: fact["task"],
        ROLLOUT_KEY: fact["rollout"],
        "reward": fact.get("reward"),
    }
    numbers = {
        name: value
        for name, value in fact.items()
        if value is not None and name not in ("row", "task", "rollout", *_JUDGE)
    }
    return cast("RowJson", {**named, **numbers})


class _NotCommitted(Exception):
    """Raised to abandon the replacement of a file."""


class _Writer:
    """Writes experiences to a file (replaced atomically at the end), to a buffer, to both, or nowhere in a dry run."""

    def __init__(self, options: ExperienceOptions, files: RunFiles) -> None:
        wants_file = not options.dry_run and (options.out is not None or options.buffer is None)
        self._path = (Path(options.out) if options.out else files.experiences) if wants_file else None
        self._target = None if options.dry_run else options.buffer
        self._buffer: Buffer | None = None
        self._file: Any = None
        self._stack = ExitStack()
        self.duplicates = 0

    def __enter__(self) -> _Writer:
        if self._target is not None:
            self._buffer = open_buffer(self._target)
        if self._path is not None:
            self._file = self._stack.enter_context(replacing(self._path))
        return self

    def write(self, experiences: list[Experience]) -> None:
        if self._file is not None:
            self._file.writelines(to_json(to_row(experience)) + b"\n" for experience in experiences)
        if self._buffer is not None:
            self.duplicates += len(experiences) - self._buffer.append(experiences)

    def commit(self) -> str | None:
        """Move the file into place; returns its path."""
        if self._path is None:
            return None
        self._stack.close()
        return str(self._path)

    def __exit__(self, *_: object) -> None:
        if self._buffer is not None:
            self._buffer.close()
        with suppress(_NotCommitted):  # a file that was not committed leaves the old one in its place
            self._stack.__exit__(_NotCommitted, _NotCommitted(), None)
