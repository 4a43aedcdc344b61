"""Fields that appear or stop half-way through a run, because different code made its parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding
from rollforge.statistics.stats import Ints

MOST = 5
"""Most fields to report; a change of code changes many at once."""


@check("late-fields", "collection", min_rows=30, min_share=0.9)
def late_fields(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Fields appear or stop half-way through the run: different code made its parts."""
    reported = 0
    for name, has_field, positions in (*_numbers(run), *_others(run)):
        begins = _beginning(
            has_field,
            int(limits["min_rows"] * len(has_field) / max(run.n, len(has_field), 1)),
            limits["min_share"],
        )
        if begins is None or reported == MOST:
            continue
        reported += 1
        verb = "stops" if has_field[:begins].any() else "appears"
        about = "about " if positions is run.spread and run.n > len(positions) else ""
        line = int(run.line[positions[begins]])
        yield Finding(
            level="warning",
            text=f"{name} {verb} at {about}line {line:,}: {has_field.mean():.0%} of {len(has_field):,} rollouts looked at have it",
            value=float(has_field.mean()),
            threshold=limits["min_share"],
            n=len(has_field),
            where=run.lines(positions[[begins]]),
            next=f"judge all with one version of the verifier: {run.verify('--fresh')}",
        )


def _numbers(run: Evidence) -> Iterator[tuple[str, Bools, Ints]]:
    """For each number that some rollouts lack: a mask of the judged rollouts that have it, and their positions."""
    judged = np.flatnonzero(run.judged)
    names = [name for name in run.metrics if name not in run.source.whole_numbers]
    for name, values in run.each_number(names):
        yield name, ~np.isnan(values[judged]), judged


def _others(run: Evidence) -> Iterator[tuple[str, Bools, Ints]]:
    """For each other field: a mask of the rollouts at `spread` that have it, and their positions."""
    positions = run.spread
    fields_by_row = run.texts.fields(run.row[positions].tolist())
    for name in sorted(frozenset().union(*fields_by_row) - {"reward", *run.metrics}):
        yield name, np.asarray([name in fields for fields in fields_by_row]), positions


def _beginning(has_field: Bools, least: int, min_share: float) -> int | None:
    """Position where the field begins or ends, if it is missing on one side and nearly always present on the other."""
    count, least = int(has_field.sum()), max(least, 5)
    if not least <= count <= len(has_field) - least:
        return None
    first, last = int(has_field.argmax()), len(has_field) - 1 - int(has_field[::-1].argmax())
    is_late, is_early = first >= least, len(has_field) - 1 - last >= least
    if count / (last - first + 1) < min_share or is_late == is_early:
        return None
    return first if is_late else last
