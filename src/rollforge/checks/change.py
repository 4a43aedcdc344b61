"""Rewards that change at one point of the run: a step in the rate, a collapse together with the verifier's pace or errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.chance import best_split, superiority
from rollforge.checks.building_blocks.coded_columns import Bools, TextCodes
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding
from rollforge.checks.building_blocks.order import (
    honest_reason,
    location_of,
    most_at_end,
    task_means,
    timed,
    when,
)
from rollforge.checks.building_blocks.stream import suspect_condition
from rollforge.statistics.intervals import clustered_mean, paired_difference
from rollforge.statistics.stats import Floats, Ints

POINTS = 4000
"""A long run is averaged to this many points before the search for its best split."""
LEAST_POINTS = 20

COLLAPSED = 0.05
"""Distance from an end of the range within which the mean scaled reward means that nearly all rewards are equal."""

ORDINARY = 0.3
"""An ordinary mean is at least this far from both ends; means of sorted tasks that are mostly always or never solved are closer."""

LEAST_TASKS = 15
"""Tasks needed on either side of a collapse that has no other evidence."""

LEAST_USUAL = 0.2
"""The ordinary side must have at least this share of tasks; a few good ones at an end are the best of a sorted hard run."""

LATENCY = re.compile(
    r"(?:verif|judg|grad|scor|reward)\w*?_?(?:seconds|secs?|latency|time|duration)(?:_m?s)?$"
)
ERROR = re.compile(r"(?:^|_|\.)(?:error|exception|timed_out|timeout)s?(?:_message|_type)?$")
"""Common names of fields for the duration of verification, and for its errors."""


@check("suspect-window", "verification")
def suspect_window(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """`collect` itself marked a window of untrustworthy rewards."""
    window = run.about.suspect
    if window is None:
        return
    yield Finding(
        level="warning",
        text=f"collect marked {window.rollouts:,} rollouts as suspect: {window.reason}",
        value=window.value,
        n=window.rollouts,
        where=[{"first_at": window.first_at, "last_at": window.last_at}],
        next=f'look at them: rollforge show {run.name} --where "{suspect_condition(window)}" --limit 5',
    )


# A step in the rate


class Step(NamedTuple):
    """The most significant change of the mean scaled reward: where, and by how much."""

    position: int
    before: float
    after: float
    z: float

    @property
    def is_collapse(self) -> bool:
        """Whether one side has nearly only lowest or nearly only highest rewards, and the other side does not."""
        low, high = sorted((self.before, self.after))
        return (low < COLLAPSED and _is_ordinary(high)) or (1 - high < COLLAPSED and _is_ordinary(low))


def _is_ordinary(mean: float) -> bool:
    return ORDINARY < mean < 1 - ORDINARY


@check("reward-shift", "verification", min_shift=0.05, z=5.0)
def reward_shift(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The reward rate changes at one point of the run."""
    if run.judged_n < 100 or len(run.levels) < 2:
        return
    order = timed(run)
    step = _step(run, order)
    if step is None or step.z < limits["z"] or abs(step.after - step.before) < limits["min_shift"]:
        return
    within = _shift_within_tasks(run, order, step.position)
    if within is not None and within[1] > limits["z"] and abs(within[0]) >= limits["min_shift"]:
        proof = f"in tasks with rollouts on both sides it changes by {within[0]:+.2f}, so the tasks are not the reason"
    else:
        is_likely = within is None or (within[1] > 2 and within[0] * (step.after - step.before) > 0)
        proof = _collapse_proof(run, order, step) if is_likely else ""
    first = int(order[step.position])
    yield Finding(
        level="error" if proof else "warning",
        text=f"the mean scaled reward goes from {step.before:.2f} to {step.after:.2f} at {when(run, first)}{run.range.note}; "
        f"{proof or 'tasks sorted by difficulty look the same, so this alone is no proof'}",
        value=step.after - step.before,
        threshold=limits["min_shift"],
        n=len(order),
        where=[location_of(run, first, int(order[-1]))],
        next=f"judge a sample again and compare: {run.verify('--fresh --sample 500')}",
    )


def _step(run: Evidence, order: Ints) -> Step | None:
    rewards = run.scaled[order]
    width = max(1, len(order) // POINTS, run.samples)  # by tasks, not by rollouts, which agree within a task
    whole = len(order) // width * width
    points = rewards[:whole].reshape(-1, width).mean(axis=1)
    if len(points) < LEAST_POINTS:
        return None
    point, z = best_split(points)
    position = point * width
    return Step(position, float(rewards[:position].mean()), float(rewards[position:].mean()), z)


def _collapse_proof(run: Evidence, order: Ints, step: Step) -> str:
    """Evidence of a fault when no task is on both sides: rewards collapse while nothing else changes or drifts."""
    if not step.is_collapse:
        return ""
    early, late = order[: step.position], order[step.position :]
    is_late_odd = min(step.after, 1 - step.after) < min(step.before, 1 - step.before)
    odd, usual = (late, early[::-1]) if is_late_odd else (early, late)  # the usual ones nearest first
    odd_tasks, usual_tasks = (len(np.unique(run.group[side])) for side in (odd, usual))
    is_much = min(odd_tasks, usual_tasks) >= LEAST_TASKS and usual_tasks >= LEAST_USUAL * run.groups
    if not is_much or _drifts_into(run, usual, odd):
        return ""
    none = order[:0]
    before, after = (usual[::-1], none) if is_late_odd else (none, usual)
    reason = honest_reason(run, odd, before, after, is_weak=True)
    return "" if reason else "at once, while answers stay of the same length and tasks are in no order"


def _drifts_into(run: Evidence, usual: Ints, odd: Ints) -> bool:
    """Whether the ordinary rewards, nearest first, drift towards the odd ones, as they do when tasks are sorted."""
    is_low = bool(run.scaled[odd].mean() < 0.5)
    distance = 1 - run.scaled if is_low else run.scaled
    return most_at_end(*task_means(run, usual[::-1], distance)) > 1 - ORDINARY


def _shift_within_tasks(run: Evidence, order: Ints, split: int) -> tuple[float, float] | None:
    """The change within tasks that have rollouts on both sides, and its z; None with too few such tasks."""
    is_late = np.zeros(run.n, dtype=np.bool_)
    is_late[order[split:]] = True
    counts_early, counts_late = run.per_group(run.judged & ~is_late), run.per_group(run.judged & is_late)
    both = (counts_early > 0) & (counts_late > 0)
    if int(both.sum()) < 20 or _is_split_by_length(run, is_late, both):
        return None
    sums = np.bincount(run.group[run.judged], weights=run.scaled[run.judged], minlength=run.groups)
    late = np.bincount(
        run.group[run.judged & is_late], weights=run.scaled[run.judged & is_late], minlength=run.groups
    )
    change = paired_difference(
        (sums - late)[both] / counts_early[both], late[both] / counts_late[both], level=0.68
    )
    if change.value is None or change.low is None:
        return None
    error = max((change.value - change.low) or 0.0, 1e-9)
    return change.value, abs(change.value) / error


def _is_split_by_length(run: Evidence, is_late: Bools, both: Bools) -> bool:
    """Whether lines are in order of completion, and these tasks' late answers are the long ones: then the length may be the reason."""
    if not np.isnan(run.started).any():
        return False
    chars = np.log1p(run.answer_chars)
    early, late = (
        np.bincount(run.group[side], chars[side], run.groups)[both] / run.per_group(side)[both]
        for side in (run.judged & ~is_late, run.judged & is_late)
    )
    change = paired_difference(early, late, level=0.99)
    return change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)


# A collapse together with the verifier


@check("collapse-with-latency", "verification", ratio=5.0, min_drop=0.05, share_above=0.9)
def collapse_with_latency(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The reward falls when verification becomes much faster or much slower."""
    if run.judged_n < 100 or len(run.levels) < 2:
        return
    order, seconds = timed(run), _verify_seconds(run)
    with_seconds = order[~np.isnan(seconds[order])]
    if len(with_seconds) < max(100, 0.5 * len(order)):
        return
    split, z = _split(np.log(np.maximum(seconds[with_seconds], 0.0) + 1e-6))
    if z < 6.0:
        return
    early, late = with_seconds[:split], with_seconds[split:]
    ratio = float((np.median(seconds[late]) + 1e-6) / (np.median(seconds[early]) + 1e-6))
    above = superiority(seconds[early], seconds[late])
    if max(ratio, 1 / ratio) < limits["ratio"] or max(above, 1 - above) < limits["share_above"]:
        return
    pace = f"{ratio:,.0f} times slower" if ratio > 1 else f"{1 / ratio:,.0f} times faster"
    yield from _collapse(run, early, late, f"verification becomes {pace}", limits)


@check("collapse-with-errors", "verification", max_before=0.2, min_rise=0.3, min_drop=0.05)
def collapse_with_errors(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The reward falls when verdicts begin to carry errors."""
    # Errors spread over the run may be those of the answers (code that does not run): only a beginning is the verifier's.
    if run.judged_n < 100 or len(run.levels) < 2:
        return
    order = timed(run)
    for name, has_error in _error_fields(run):
        errors = has_error[order].astype(np.float64)
        position, z = _split(errors)
        early, late = order[:position], order[position:]
        before, after = errors[:position].mean(), errors[position:].mean()
        if z < 6.0 or before > limits["max_before"] or after - before < limits["min_rise"]:
            continue
        if not honest_reason(run, late, early, order[:0]):
            text = f"{after:.0%} of verdicts come with {name} after {before:.0%} before,"
            yield from _collapse(run, early, late, text, limits)
            return


def _collapse(run: Evidence, early: Ints, late: Ints, what: str, limits: Limits) -> Iterator[Finding]:
    """The finding, if the reward falls significantly too."""
    (before, error_before), (after, error_after) = _mean_and_error(run, early), _mean_and_error(run, late)
    drop = before - after
    is_sure = drop > 3 * math.hypot(error_before, error_after)
    if drop < max(limits["min_drop"], 0.4 * before) or not is_sure:
        return
    first = int(late[0])
    since = f'--where "line >= {run.line[first]}"'
    yield Finding(
        level="error",
        text=f"at {when(run, first)} {what} and the mean scaled reward falls by {drop:.2f}{run.range.note}: "
        "the verifier seems to fail rather than to judge",
        value=drop,
        threshold=limits["min_drop"],
        n=len(early) + len(late),
        where=[location_of(run, first, int(late[-1]))],
        next=f"judge what followed again: {run.verify(f'--fresh {since}', f'{since} --limit 5')}",
    )


def _verify_seconds(run: Evidence) -> Floats:
    """Duration of verification: as measured by `collect`, else a field of the rows, in any unit."""
    if not np.isnan(run.verify_seconds).all():
        return run.verify_seconds
    name = next((name for name in run.source.numbers if LATENCY.search(name)), None)
    return run.verify_seconds if name is None else run.number(name)


def _error_fields(run: Evidence) -> Iterator[tuple[str, Bools]]:
    """Row fields that report errors, each with a mask of the rollouts that have one."""
    for name in run.source.texts:
        if ERROR.search(name):
            messages = TextCodes(run.source.table([name])[name])
            is_said = np.array([bool(text) for text in messages.names] + [False])
            yield name, is_said[messages.codes]
    for name in run.metrics:
        if ERROR.search(name):
            yield name, np.nan_to_num(run.number(name)) > 0


def _mean_and_error(run: Evidence, positions: Ints) -> tuple[float, float]:
    """The mean scaled reward and its standard error between tasks."""
    counts = np.bincount(run.group[positions], minlength=run.groups)
    sums = np.bincount(run.group[positions], weights=run.scaled[positions], minlength=run.groups)
    estimate = clustered_mean(sums, counts, level=0.6827)
    if estimate.value is None or estimate.high is None:
        return estimate.value or 0.0, math.inf
    return estimate.value, max(estimate.high - estimate.value, 1e-6)


def _split(values: Floats) -> tuple[int, float]:
    """The best split of values along the run, and its z score."""
    width = max(1, len(values) // POINTS)
    whole = len(values) // width * width
    point, z = best_split(values[:whole].reshape(-1, width).mean(axis=1))
    return point * width, z
