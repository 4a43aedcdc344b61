"""Fields that appear half-way through a run, or stop: its parts were made by different code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.columns import Bools
from rollforge.checks.evidence import Evidence
from rollforge.checks.finding import Finding
from rollforge.stats import Ints

MOST = 5
"""Most fields to report: a change of code changes many at once."""


@check("late-fields", "collection", min_rows=30, min_share=0.9)
def late_fields(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Fields that appear half-way through the run, or stop: its parts were made by different code."""
    reported = 0
    for name, known, positions in (*_numbers(run), *_others(run)):
        place = _beginning(
            known, int(limits["min_rows"] * len(known) / max(run.n, len(known), 1)), limits["min_share"]
        )
        if place is None or reported == MOST:
            continue
        reported += 1
        verb = "stops" if known[:place].any() else "appears"
        about = "about " if positions is run.spread and run.n > len(positions) else ""
        line = int(run.line[positions[place]])
        yield Finding(
            level="warning",
            text=f"{name} {verb} at {about}line {line:,}: {known.mean():.0%} of {len(known):,} rollouts looked at have it",
            value=float(known.mean()),
            threshold=limits["min_share"],
            n=len(known),
            where=run.lines(positions[[place]]),
            next=f"judge all with one version of the verifier: {run.verify('--fresh')}",
        )


def _numbers(run: Evidence) -> Iterator[tuple[str, Bools, Ints]]:
    """For each number that some rollouts lack: which judged rollouts have it, and their positions."""
    judged = np.flatnonzero(run.judged)
    names = [name for name in run.metrics if name not in run.source.whole_numbers]
    for name, values in run.each_number(names):
        yield name, ~np.isnan(values[judged]), judged


def _others(run: Evidence) -> Iterator[tuple[str, Bools, Ints]]:
    """For each other field: which of the rollouts at `spread` have it, and their positions."""
    positions = run.spread
    found = run.texts.fields(run.row[positions].tolist())
    for name in sorted(frozenset().union(*found) - {"reward", *run.metrics}):
        yield name, np.asarray([name in fields for fields in found]), positions


def _beginning(known: Bools, least: int, min_share: float) -> int | None:
    """Where the field begins or ends, if it is missing on one side and nearly always present on the other."""
    count, least = int(known.sum()), max(least, 5)
    if not least <= count <= len(known) - least:
        return None
    first, last = int(known.argmax()), len(known) - 1 - int(known[::-1].argmax())
    is_late, is_early = first >= least, len(known) - 1 - last >= least
    if count / (last - first + 1) < min_share or is_late == is_early:
        return None
    return first if is_late else last
