"""Rewards that change while the run goes on: a stretch of equal ones, a step in the rate, a collapse together with the verifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from rollforge.checks.base import Finding, Limits, check, share
from rollforge.checks.chance import Run, best_split, longest_runs, superiority, superiority_error
from rollforge.checks.evidence import Evidence
from rollforge.records import JsonObject
from rollforge.stats import Ints, paired_difference

NEIGHBOURS = 400
"""Rollouts on either side that a stretch is compared with: near ones, because tasks may be sorted by difficulty."""

NEAR = 40
"""Of these, the nearest."""

RUNS = 5
POINTS = 4000
"""A long run is averaged to this many points before its best split is looked for."""


def _timed(run: Evidence) -> Ints:
    """Judged positions in the order of time."""
    if "timed" not in run.shared:
        run.shared["timed"] = run.in_time[run.judged[run.in_time]]
    timed: Ints = run.shared["timed"]
    return timed


def _when(run: Evidence, position: int) -> str:
    line = f"line {run.line[position]:,}"
    if math.isnan(run.started[position]):
        return line
    return f"{line}, {datetime.fromtimestamp(run.started[position], UTC):%Y-%m-%d %H:%M:%S} UTC"


def _place(run: Evidence, first: int, last: int) -> JsonObject:
    return {
        "first_line": int(run.line[first]),
        "last_line": int(run.line[last]),
        "task": int(run.task_id[first]),
        "rollout": int(run.rollout[first]),
        "at": None if math.isnan(run.started[first]) else float(run.started[first]),
    }


@check("stuck-rewards", "verification", chance=1e-6, min_tasks=20)
def stuck_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """For a stretch of the run every reward is the same number, unlike before and after."""
    if len(run.levels) < 2:
        return
    order = _timed(run)
    rewards = run.reward[order]
    for stretch in longest_runs(rewards, RUNS):
        tasks = len(np.unique(run.group[order[stretch.start : stretch.start + stretch.length]]))
        if tasks < limits["min_tasks"]:
            continue
        usual = _share_around(run, order, stretch)
        if usual is None:
            continue
        chance = usual**tasks * len(rewards) / stretch.length
        if chance < limits["chance"]:
            yield _stuck(run, order, stretch, usual, limits["chance"])
            return


def _share_around(run: Evidence, order: Ints, stretch: Run) -> float | None:
    """The most that the stretch's reward is likely to be had otherwise; None when there is too little to tell from.

    It is the largest of three: before, after, and in the other rollouts of the same tasks. Tasks may be sorted by difficulty, and
    then at least one of them explains the stretch.
    """
    end = stretch.start + stretch.length
    usual = [
        _share_beside(run, order[max(0, stretch.start - NEIGHBOURS) : stretch.start][::-1], stretch.value),
        _share_beside(run, order[end : end + NEIGHBOURS], stretch.value),
        _share_elsewhere(run, order, stretch),
    ]
    known = [item for item in usual if item is not None]
    return max(known) if known else None


def _share_beside(run: Evidence, beside: Ints, value: float) -> float | None:
    """The upper bound of the share on one side, nearest first: of the near ones alone if the share rises towards the stretch."""
    if len(beside) < NEAR:
        return None
    same = run.reward[beside] == value
    near, far = (
        share(int(same[:count].sum()), count, independent=len(np.unique(run.group[beside[:count]])))
        for count in (NEAR, len(beside))
    )
    return near.high if near.value > far.value + 0.05 else far.high


def _share_elsewhere(run: Evidence, order: Ints, stretch: Run) -> float | None:
    """The upper bound of the share among rollouts of the same tasks outside the stretch."""
    inside = order[stretch.start : stretch.start + stretch.length]
    is_outside = run.judged & np.isin(run.group, run.group[inside])
    is_outside[inside] = False
    n = int(is_outside.sum())
    if n < NEAR:
        return None
    tasks = int((run.per_group(is_outside) > 0).sum())
    return share(int((run.reward[is_outside] == stretch.value).sum()), n, independent=tasks).high


def _stuck(run: Evidence, order: Ints, stretch: Run, usual: float, limit: float) -> Finding:
    first, last = int(order[stretch.start]), int(order[stretch.start + stretch.length - 1])
    is_to_end = stretch.start + stretch.length == len(order)
    special = _coincides(run, order, stretch) or _trend(run, order, stretch)
    text = (
        f"{stretch.length:,} rewards in a row are {stretch.value:g}, from {_when(run, first)}"
        f"{' to the end' if is_to_end else f' to line {run.line[last]:,}'}; around them at most {usual:.0%} are"
    )
    if special:
        text += f"; {special}, which may explain it"
    return Finding(
        level="warning" if special else "error",
        text=text,
        value=stretch.value,
        threshold=limit,
        n=stretch.length,
        where=[_place(run, first, last)],
        next=f"judge the stretch again: rollforge verify {run.name} --verifier {run.verifier_name} --fresh "
        f'--where "line between {run.line[first]} and {run.line[last]}"',
    )


def _coincides(run: Evidence, order: Ints, stretch: Run) -> str:
    """What is special about exactly the rollouts of the stretch: an agent or a family of tasks; empty when nothing is."""
    end = stretch.start + stretch.length
    inside = order[stretch.start : end]
    around = np.concatenate(
        [order[max(0, stretch.start - NEIGHBOURS) : stretch.start], order[end : end + NEIGHBOURS]]
    )
    for kind in ("agent", *run.family_fields):
        names = run.agent if kind == "agent" else run.family(kind)
        code = int(names.codes[inside[0]])
        is_same = names.codes[inside] == code
        if (
            len(names.names) > 1
            and code >= 0
            and is_same.mean() > 0.95
            and (names.codes[around] == code).mean() < 0.05
        ):
            return f"they are all of {kind} {names.names[code]!r}"
    return ""


def _trend(run: Evidence, order: Ints, stretch: Run) -> str:
    """Whether the reward grows commoner towards the stretch: tasks sorted by difficulty end in one, honestly."""
    for beside in (order[: stretch.start][::-1], order[stretch.start + stretch.length :]):
        half = len(beside) // 2
        if half < NEAR:
            continue
        near, far = (
            share(
                int((run.reward[part] == stretch.value).sum()),
                len(part),
                independent=len(np.unique(run.group[part])),
            )
            for part in (beside[:half], beside[half:])
        )
        if near.low > far.high:
            return "tasks seem to be sorted by difficulty"
    return ""


@check("suspect-window", "verification")
def suspect_window(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """`collect` itself marked a window of rewards as not to be trusted."""
    window = run.about.suspect
    if window is None:
        return
    since = f"started + seconds >= {window.get('first_at', 0.0):.3f}"
    yield Finding(
        level="warning",
        text=f"collect marked {window.get('rollouts', 0):,} rollouts as suspect: {window.get('reason', '')}",
        value=window.get("value"),
        n=window.get("rollouts"),
        where=[{"first_at": window.get("first_at"), "last_at": window.get("last_at")}],
        next=f'look at them: rollforge show {run.name} --where "{since}" --limit 5',
    )


@check("reward-shift", "verification", min_shift=0.1, z=6.0)
def reward_shift(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The reward rate changes at one point of the run."""
    if run.judged_n < 200 or len(run.levels) < 2:
        return
    order = _timed(run)
    split = _split(run, order)
    if split is None:
        return
    place, before, after, z = split
    if z < limits["z"] or abs(after - before) < limits["min_shift"]:
        return
    within = _shift_within_tasks(run, order, place)
    is_proof = within is not None and within[1] > limits["z"] and abs(within[0]) >= limits["min_shift"]
    first = int(order[place])
    text = (
        f"the mean scaled reward goes from {before:.2f} to {after:.2f} at {_when(run, first)}{run.range.note}"
    )
    if is_proof and within is not None:
        text += f"; in tasks with rollouts on both sides it changes by {within[0]:+.2f}, so the tasks are not the reason"
    else:
        text += "; tasks sorted by difficulty look the same, so this alone is no proof"
    yield Finding(
        level="error" if is_proof else "warning",
        text=text,
        value=after - before,
        threshold=limits["min_shift"],
        n=len(order),
        where=[_place(run, first, int(order[-1]))],
        next=f"judge a sample again and compare: rollforge verify {run.name} --verifier {run.verifier_name} --fresh --sample 500",
    )


def _split(run: Evidence, order: Ints) -> tuple[int, float, float, float] | None:
    """Where the mean changes most surely (by tasks, not by rollouts), the means on both sides, and the z."""
    rewards = run.scaled[order]
    width = max(1, len(order) // POINTS, run.samples)
    whole = len(order) // width * width
    points = rewards[:whole].reshape(-1, width).mean(axis=1)
    if len(points) < 40:
        return None
    point, z = best_split(points)
    place = point * width
    return place, float(rewards[:place].mean()), float(rewards[place:].mean()), z


def _shift_within_tasks(run: Evidence, order: Ints, place: int) -> tuple[float, float] | None:
    """The change inside tasks that have rollouts on both sides, and its z; None when too few have."""
    is_late = np.zeros(run.n, dtype=np.bool_)
    is_late[order[place:]] = True
    counts_early, counts_late = run.per_group(run.judged & ~is_late), run.per_group(run.judged & is_late)
    both = (counts_early > 0) & (counts_late > 0)
    if int(both.sum()) < 20:
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


@check("collapse-with-latency", "verification", ratio=5.0, min_drop=0.1, share_above=0.9)
def collapse_with_latency(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The reward falls at the moment at which verification becomes much faster, much slower or fails."""
    if run.judged_n < 100 or len(run.levels) < 2:
        return
    order = _timed(run)
    timed = order[~np.isnan(run.verify_seconds[order])]
    if len(timed) < max(100, 0.5 * len(order)):
        return
    place, z = _latency_split(run, timed)
    if z < 6.0:
        return
    early, late = timed[:place], timed[place:]
    quick, slow = np.median(run.verify_seconds[early]), np.median(run.verify_seconds[late])
    ratio = float((slow + 1e-6) / (quick + 1e-6))
    if max(ratio, 1 / ratio) < limits["ratio"]:
        return
    above = superiority(run.verify_seconds[early], run.verify_seconds[late])
    drop = float(run.scaled[early].mean() - run.scaled[late].mean())
    if max(above, 1 - above) < limits["share_above"]:
        return
    lower = superiority(run.scaled[late], run.scaled[early]) - 0.5
    tasks = [int((np.bincount(run.group[part]) > 0).sum()) for part in (early, late)]
    is_sure = lower > 4 * superiority_error(*tasks)
    if drop < limits["min_drop"] or not is_sure:
        return
    first = int(late[0])
    yield Finding(
        level="error",
        text=f"at {_when(run, first)} verification becomes {_times(ratio)} and the mean scaled reward falls by {drop:.2f}"
        f"{run.range.note}: the verifier seems to fail rather than to judge",
        value=drop,
        threshold=limits["min_drop"],
        n=len(timed),
        where=[_place(run, first, int(late[-1]))],
        next=f"judge what followed again: rollforge verify {run.name} --verifier {run.verifier_name} --fresh "
        f'--where "line >= {run.line[first]}"',
    )


def _latency_split(run: Evidence, timed: Ints) -> tuple[int, float]:
    logs = np.log(run.verify_seconds[timed] + 1e-6)
    width = max(1, len(timed) // POINTS)
    whole = len(timed) // width * width
    point, z = best_split(logs[:whole].reshape(-1, width).mean(axis=1))
    return point * width, z


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times slower" if ratio > 1 else f"{1 / ratio:,.0f} times faster"
