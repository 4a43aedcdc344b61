"""Recorded model calls of program attempts that did not become rollouts: killed, failed, or still running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from rollforge.conversations.turns import Turn, turns_of
from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.proxy import merge_calls, read_calls, recorded_attempts
from rollforge.records import PARAMS_KEY
from rollforge.store import RunFiles
from rollforge.store.find import find_runs


class ShownAttempt(Struct, kw_only=True):
    """One attempt in readable form, with its sequences like those of a rollout."""

    task: int
    rollout: int
    session: str
    started: float
    calls: int
    failed_calls: list[str]
    """Reasons of failed calls, in order."""
    is_finished: bool
    """Whether the rollout was finished, by any attempt."""
    turns: list[Turn]


class CallsOfRun(Struct, kw_only=True):
    """The selected attempts, and the total number."""

    attempts: list[ShownAttempt]
    unfinished: int
    """Number of attempts at rollouts without a row."""
    unfinished_calls: int


def show_calls(
    runs: Sequence[str | Path], *, tasks: Sequence[int] = (), rollout: int | None = None, limit: int = 5
) -> CallsOfRun:
    """The recorded attempts of unfinished or of selected rollouts."""
    files = [one for run in runs for one in _files(run)]
    paths = [path for run in files for path in _files_of_calls(run)]
    if not paths:
        raise UsageError(
            f"{', '.join(map(str, runs))}: no recorded calls",
            hint="only programs and environments behind the proxy leave a file of calls (RUN/rollouts_calls.jsonl)",
        )
    finished = set(_finished(files))
    attempts = recorded_attempts(paths)
    unfinished = [one for one in attempts if (one.task, one.sample) not in finished]
    wanted = attempts if tasks or rollout is not None else unfinished
    chosen = [
        one
        for one in wanted
        if (not tasks or one.task in tasks) and (rollout is None or one.sample == rollout)
    ][:limit]
    calls_by_session = read_calls(paths, {one.session for one in chosen})
    shown = []
    for one in chosen:
        calls = calls_by_session[one.session]
        sequences = merge_calls(calls)
        turns: list[Turn] = []
        for number, sequence in enumerate(sequences):
            if number:
                turns.append(
                    Turn("other", "", f"sequence {number}: {sequence.role}, {len(sequence.calls)} turns")
                )
            turns += turns_of({PARAMS_KEY: sequence.prompt, "response": {"output": sequence.output}})
        shown.append(
            ShownAttempt(
                task=one.task,
                rollout=one.sample,
                session=one.session,
                started=one.started,
                calls=len(calls),
                failed_calls=[
                    f"{call.failure.kind}: {call.failure.message}"
                    for call in calls
                    if call.failure is not None
                ],
                is_finished=(one.task, one.sample) in finished,
                turns=turns,
            )
        )
    return CallsOfRun(
        attempts=shown,
        unfinished=len(unfinished),
        unfinished_calls=sum(one.calls for one in unfinished),
    )


def _files_of_calls(run: RunFiles) -> list[Path]:
    """The run's calls file, those of other worker processes, and those of its shards."""
    folder = run.calls.parent
    paths = [*folder.glob(f"{run.calls.stem}*.jsonl"), *(folder / "shards").glob("**/*_calls*.jsonl")]
    return sorted(path for path in paths if path.stat().st_size)


def _files(run: str | Path) -> list[RunFiles]:
    """The runs that a path refers to; a run without finished rollouts has no rollouts file yet."""
    files = RunFiles(run)
    return [files] if files.calls.is_file() else find_runs(run)


def _finished(files: list[RunFiles]) -> Iterator[tuple[int, int]]:
    begun = [run.rollouts for run in files if run.is_sharded or run.rollouts.is_file()]
    if not begun:
        return
    with open_index([str(path) for path in begun]) as index:
        table = index.select("SELECT task, rollout FROM rollouts", label="show")
        yield from zip(table.column("task").to_pylist(), table.column("rollout").to_pylist(), strict=True)
