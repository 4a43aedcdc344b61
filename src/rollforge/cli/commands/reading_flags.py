"""Shared by commands that read a run: their flags, and the report on bad lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.converters import Flag, within
from rollforge.cli.render.console import say
from rollforge.errors import Exit, UsageError
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.index import Index


@Parameter(name="*")
@dataclass(kw_only=True)
class Reading:
    """Flags that select a run's verdicts and rollouts, and how to read them."""

    verifier: str | None = None
    """Verifier whose verdicts count. Default: the run's verdict of record, else the inline ones."""
    where: str | None = None
    """Only rollouts for which this SQL expression over the columns holds: "accuracy >= 0.8 and turns < 5"."""
    strict: Flag = False
    """Exit with code 2 if a line cannot be read or is odd."""
    workers: Annotated[int | None, within(1, 1024)] = None
    """Threads for the first pass over the text, and for writing a profile. Default: one per core for large files."""
    on: str | None = None
    """Where the first pass over the text runs: local, processes, or ray (ray:HOST:PORT); --workers says how many."""


def index_elsewhere(runs: str | Sequence[str], on: str | None, workers: int | None = None) -> None:
    """With --on, build the index on other processes or machines first."""
    if on is None or on == "local":
        return
    from rollforge.steps.indexing import index_by_workers

    index_by_workers(runs, on=on, workers=workers)


def check_count(name: str, count: int) -> None:
    """Raise unless the count is at least 1."""
    if count < 1:
        raise UsageError(f"--{name} must be at least 1, not {count}", hint=f"give --{name} 1 or more")


def say_doubt(index: Index) -> None:
    """Warn if the file does not look like a run."""
    doubt = index.doubt()
    if doubt is not None:
        say(f"warning: {doubt}")


def exit_of_tasks(index: Index) -> Exit:
    """Return the exit code of a file without any response or reward, as `check` and `report` have it; else 0."""
    if index.doubt() is None:
        return Exit.DONE
    tasks = shlex.quote(str(index.runs[0].rollouts))
    say(f"  next: collect rollouts for them: rollforge collect -i {tasks} -o RUN -m MODEL --verifier NAME")
    return Exit.INCOMPLETE


def strict_exit(index: Index, *, is_strict: bool) -> Exit:
    """Print bad lines, the first ones with their location; return exit code 2 under --strict."""
    bad = index.rejects
    if not bad and not index.duplicate_count:
        return _exit_of_empty(index) if len(index) == 0 else Exit.DONE
    counted = (
        (index.rejected_lines, "line rejected", "lines rejected"),
        (index.noted_lines, "odd row", "odd rows"),
        (index.duplicate_count, "duplicate", "duplicates"),
    )
    say("note: " + ", ".join(count_of(count, one, many) for count, one, many in counted if count))
    shown = bad[: 20 if is_strict else 3]
    for one in shown:
        say(f"  {one.file}:{one.line}: {one.reason} (offset {one.offset})")
    if bad and len(shown) < index.rejected_lines + index.noted_lines:
        runs = shlex.join(str(files.rollouts) for files in index.runs)
        say(f"  … more under bad_lines in: rollforge metrics {runs} --json")
    for double in index.duplicates[:3]:
        say(
            f"  {double.file}:{double.line}: a later row is task {double.task}, rollout {double.rollout}, too, and counts"
        )
    if index.duplicates and len(index.runs) > 1:
        say(
            "  rollouts of several files that share task and rollout are one, the last; only prepare pools them"
        )
    if len(index) == 0:
        return _exit_of_empty(index)
    if not is_strict or not bad:
        return Exit.DONE
    say(
        f"error: {count_of(index.rejected_lines + index.noted_lines, 'bad or odd line')}, and --strict was given"
    )
    return Exit.USAGE


def _exit_of_empty(index: Index) -> Exit:
    """Return the exit code of a run without rollouts: unreadable lines are an error, an empty file is incomplete."""
    names = ", ".join(str(files.rollouts) for files in index.runs)
    if index.rejected_lines:
        say(f"error: {names}: no line could be read as a rollout")
        say(f"  next: rollforge validate {shlex.join(str(files.rollouts) for files in index.runs)}")
        return Exit.USAGE
    say(f"error: {names}: no rollouts")
    say("  next: collect some: rollforge collect --help")
    return Exit.INCOMPLETE
