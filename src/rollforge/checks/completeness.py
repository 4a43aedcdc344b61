"""Completeness: unjudged and missing rollouts, thin groups, duplicates, unreadable lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share


@check("low-coverage", "collection", warn_share=0.95, min_share=0.8, say_share=0.5)
def low_coverage(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Too few of the finished rollouts are judged."""
    estimate = share(run.judged_n, run.n, independent=run.all_independent)
    if not run.n:
        text, step = ("the run has no rollouts", "collect some: rollforge collect --help")
        if run.about.where is not None:
            text, step = (
                f"the run has no rollouts where {run.about.where}",
                "ask for others, or leave --where out",
            )
        yield Finding(
            level="error", text=text, value=0.0, threshold=limits["min_share"], n=0, is_incomplete=True, next=step,
        )  # fmt: skip
        return
    if not run.judged_n and np.isnan(run.answer_chars).all():
        yield Finding(
            level="error", text=f"none of the {run.n:,} rows has a response or a reward: is this a file of tasks?", value=0.0,
            threshold=limits["min_share"], n=run.n, is_incomplete=True,
            next="check a run; to check task files: rollforge validate FILE",
        )  # fmt: skip
        return
    level = estimate.level_below(warning=limits["warn_share"], error=limits["min_share"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"{run.judged_n:,} of {run.n:,} rollouts ({estimate.value:.0%}) are judged; every number about rewards is over those only"
        + (f"; {run.about.verifier_failures}" if run.about.verifier_failures else ""),
        value=estimate.value,
        threshold=limits["min_share"],
        n=run.n,
        interval=estimate.interval,
        where=run.lines(~run.judged),
        is_incomplete=estimate.high < limits["say_share"] or run.judged_n == 0,
        next=f"judge the rest: {run.verify_rest()}",
    )


@check("missing-rollouts", "collection", warn_share=0.02, max_share=0.1, say_share=0.5)
def missing_rollouts(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rollouts that were to be made are not there."""
    expected = run.about.expected or run.samples * run.groups
    if not expected or run.n >= expected:
        return
    estimate = share(expected - run.n, expected)
    level = (
        "error"
        if estimate.value > limits["max_share"]
        else "warning"
        if estimate.value > limits["warn_share"]
        else "note"
    )
    state = "the run is still going" if run.about.is_running else "failed or not begun"
    if run.about.expected is None:  # numbered so, but nothing says that they were asked for
        level, state = (
            ("note" if level == "note" else "warning"),
            f"rollouts are numbered up to {run.samples} per task",
        )
    yield Finding(
        level=level,  # type: ignore[arg-type]
        text=f"{estimate.count:,} of {expected:,} rollouts ({estimate.value:.1%}) are missing: {state}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=expected,
        is_incomplete=estimate.value > limits["say_share"] and run.about.expected is not None,
        next=f"resume with the same collect command; see why: {run.status}",
    )


@check("incomplete-groups", "collection", complete=0.75, warn_share=0.05, max_share=0.25)
def incomplete_groups(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Tasks with far fewer judged rollouts than were asked for."""
    # An adaptive run asks for its first stage alone; how many more a task gets is its own decision.
    group_size = run.about.design.first if run.about.design is not None else run.samples
    if group_size < 2 or not run.groups or run.judged_n == 0:
        return
    least = limits["complete"] * group_size
    short = run.profile.n < least
    estimate = share(int(short.sum()), run.groups)
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None:
        return
    doubt = "" if run.is_samples_certain else "; unless fewer were asked for"
    yield Finding(
        level="warning" if doubt else level,
        text=f"{estimate.count:,} of {estimate.n:,} tasks ({estimate.value:.0%}) have fewer than {math.ceil(least)} "
        f"of {group_size} judged rollouts{doubt}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(short),
        next=f"fill them: run the same collect command again, or {run.verify_rest()}",
    )


@check("duplicate-rollouts", "collection", max_share=0.05)
def duplicate_rollouts(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Lines with the same task and rollout; the last one counts."""
    count = run.about.duplicates
    if not count:
        return
    estimate = share(count, run.n + count)
    yield Finding(
        level="error" if estimate.low > limits["max_share"] else "warning",
        text=f"{count:,} lines repeat a (task, rollout) that comes again later; only the last one counts",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.n + count,
        interval=estimate.interval,
        where=list(run.about.duplicate_locations[: run.places_limit]),
        next="find out which program appended to the file twice; a resumed `collect` never does",
    )


@check("bad-lines", "collection", max_share=0.01)
def bad_lines(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Lines that are no rollouts."""
    count = run.about.rejected_lines
    if not count:
        return
    estimate = share(count, run.n + count)
    yield Finding(
        level="error" if estimate.low > limits["max_share"] else "warning",
        text=f"{count:,} of {run.n + count:,} lines cannot be read and are left out",
        value=estimate.value,
        threshold=limits["max_share"],
        n=run.n + count,
        interval=estimate.interval,
        next=f"see each with its place: rollforge validate {run.name}",
    )
