"""Shared by commands that read a run: their flags, and the report on bad lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from rollforge.cli.render.console import say
from rollforge.cli.values import Flag
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.index import Index


@Parameter(name="*")
@dataclass(kw_only=True)
class Reading:
    """What to read, and how."""

    verifier: str | None = None
    """Verifier whose verdicts count. Default: the run's verdict of record, else the inline ones."""
    where: str | None = None
    """Only rollouts for which this SQL expression over the columns holds: "accuracy >= 0.8 and turns < 5"."""
    strict: Flag = False
    """Exit with code 2 if a line cannot be read or is odd."""
    workers: int | None = None
    """Threads for the first pass over the text, and for writing a profile. Default: one per core for large files."""


def check_count(name: str, count: int) -> None:
    """Raise unless the count is at least 1."""
    if count < 1:
        raise UsageError(f"--{name} must be at least 1, not {count}")


def say_doubt(index: Index) -> None:
    """Say so when the file hardly is a run."""
    doubt = index.doubt()
    if doubt is not None:
        say(f"warning: {doubt}")


def strict_exit(index: Index, *, is_strict: bool) -> Exit:
    """Report bad lines, the first ones by place; return exit code 2 under --strict."""
    bad = index.rejects
    if not bad and not index.duplicate_count:
        return Exit.DONE
    counted = {
        "lines rejected": index.rejected_lines,
        "odd rows": index.noted_lines,
        "duplicates": index.duplicate_count,
    }
    say("note: " + ", ".join(f"{count:,} {what}" for what, count in counted.items() if count))
    shown = bad[: 20 if is_strict else 3]
    for one in shown:
        say(f"  {one.file}:{one.line}: {one.reason} (offset {one.offset})")
    if bad and len(shown) < index.rejected_lines + index.noted_lines:
        say("  … more under bad_lines in: rollforge metrics RUN --json")
    for double in index.duplicates[:3]:
        say(
            f"  {double.file}:{double.line}: a later row is task {double.task}, rollout {double.rollout}, too, and counts"
        )
    if index.duplicates and len(index.runs) > 1:
        say(
            "  rollouts of several files that share task and rollout are one, the last; only prepare pools them"
        )
    if not is_strict or not bad:
        return Exit.DONE
    say(f"error: {index.rejected_lines + index.noted_lines:,} bad or odd lines, and --strict was given")
    return Exit.USAGE
