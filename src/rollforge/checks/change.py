"""Rewards that change while the run goes on: a stretch of equal ones, a step in the rate, a collapse together with the verifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from rollforge.checks.base import Finding, Limits, Share, check, share
from rollforge.checks.chance import Run, best_split, chance_all_same, longest_runs, superiority
from rollforge.checks.evidence import Evidence
from rollforge.records import JsonObject
from rollforge.stats import Ints, clustered_mean, paired_difference, variance_parts

NEIGHBOURS = 400

NEAR = 40
ALIKE = 0.3
"""How much samples of a task are taken to agree where it cannot be told."""

COMMON = 0.95
"""A reward that so many have anyway proves nothing by being alone, however long."""
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


@check("stuck-rewards", "verification", chance=1e-4, min_tasks=20)
def stuck_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """For a stretch of the run every reward is the same number, unlike before and after."""
    if len(run.levels) < 2:
        return
    order = _timed(run)
    rewards = run.reward[order]
    for stretch in longest_runs(rewards, RUNS):
        inside = order[stretch.start : stretch.start + stretch.length]
        counts = np.bincount(run.group[inside])
        counts = counts[counts > 0]
        if len(counts) < limits["min_tasks"]:
            continue
        alike = _alike(run, inside, stretch.value)
        usual = _share_around(run, order, stretch, alike)
        if usual is None or usual >= 1:
            continue
        chance = chance_all_same(counts, 1 - usual, alike) * len(rewards) / stretch.length
        if chance < limits["chance"]:
            yield _stuck(run, order, stretch, usual, limits["chance"])
            return


def _alike(run: Evidence, inside: Ints, value: float) -> float:
    """How much samples of one task agree on this reward outside the stretch; rather too much than too little."""
    outside = run.judged.copy()
    outside[inside] = False
    counts = run.per_group(outside)
    many = counts > 1
    if int(many.sum()) < 20:
        return ALIKE
    same = np.bincount(run.group[outside & (run.reward == value)], minlength=run.groups)
    sizes, shares = counts[many], same[many] / counts[many]
    stds = np.sqrt(shares * (1 - shares) * sizes / (sizes - 1))
    parts = variance_parts(shares, stds, sizes)
    return float(np.clip((parts.intraclass or 0.0) + 0.1, 0.2, 0.95))


def _share_around(run: Evidence, order: Ints, stretch: Run, alike: float) -> float | None:
    """The most that the stretch's reward is likely to be had otherwise; None when there is too little to tell from.

    It is the largest of three: before, after, and in the other rollouts of the same tasks. Tasks may be sorted by difficulty, and
    then at least one of them explains the stretch.
    """
    end, width = stretch.start + stretch.length, _width(run)
    usual = [
        _share_beside(run, order[max(0, stretch.start - width) : stretch.start][::-1], stretch.value, alike),
        _share_beside(run, order[end : end + width], stretch.value, alike),
        _share_elsewhere(run, order, stretch, alike),
    ]
    known = [item for item in usual if item is not None]
    return max(known) if known else None


def _width(run: Evidence) -> int:
    """Rollouts on either side that a stretch is compared with: near ones, because tasks may be sorted by difficulty."""
    return max(NEIGHBOURS, 100 * run.samples)


def _share_in(run: Evidence, positions: Ints, value: float, alike: float) -> Share:
    counts = np.bincount(run.group[positions])
    counts = counts[counts > 0]
    worth = float((counts / (1 + alike * (counts - 1))).sum())
    return share(int((run.reward[positions] == value).sum()), len(positions), independent=worth)


def _share_beside(run: Evidence, beside: Ints, value: float, alike: float) -> float | None:
    """The upper bound of the share on one side, nearest first: of the near ones alone if the share rises towards the stretch."""
    near_width = max(NEAR, 10 * run.samples)
    if len(beside) < near_width:
        return None
    near, far = (_share_in(run, part, value, alike) for part in (beside[:near_width], beside))
    return near.high if near.low > far.value else far.high


def _share_elsewhere(run: Evidence, order: Ints, stretch: Run, alike: float) -> float | None:
    """The upper bound of the share among rollouts of the same tasks outside the stretch, if most tasks have some."""
    inside = order[stretch.start : stretch.start + stretch.length]
    tasks = np.bincount(run.group[inside], minlength=run.groups) > 0
    is_outside = run.judged & tasks[run.group]
    is_outside[inside] = False
    if int((run.per_group(is_outside) > 0).sum()) < 0.5 * int(tasks.sum()):
        return None
    return _share_in(run, np.flatnonzero(is_outside), stretch.value, alike).high


def _stuck(run: Evidence, order: Ints, stretch: Run, usual: float, limit: float) -> Finding:
    first, last = int(order[stretch.start]), int(order[stretch.start + stretch.length - 1])
    is_to_end = stretch.start + stretch.length == len(order)
    special = _coincides(run, order, stretch) or _trend(run, order, stretch)
    if not special and usual > COMMON:
        special = "the reward is the usual one there too, and tasks may be sorted by difficulty"
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
    width = _width(run)
    around = np.concatenate([order[max(0, stretch.start - width) : stretch.start], order[end : end + width]])
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
        (near, error_near), (far, error_far) = (
            _mean_and_error(run, part) for part in (beside[:half], beside[half:])
        )
        here = float(run.scaled[order[stretch.start]])
        if abs(far - here) - abs(near - here) > 3 * math.hypot(error_near, error_far):
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


@check("reward-shift", "verification", min_shift=0.05, z=5.0)
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


@check("collapse-with-latency", "verification", ratio=5.0, min_drop=0.05, share_above=0.9)
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
    if max(above, 1 - above) < limits["share_above"]:
        return
    (before, error_before), (after, error_after) = _mean_and_error(run, early), _mean_and_error(run, late)
    drop = before - after
    is_sure = drop > 3 * math.hypot(error_before, error_after)
    if drop < max(limits["min_drop"], 0.4 * before) or not is_sure:
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


def _mean_and_error(run: Evidence, positions: Ints) -> tuple[float, float]:
    """The mean scaled reward and its standard error between tasks."""
    counts = np.bincount(run.group[positions], minlength=run.groups)
    sums = np.bincount(run.group[positions], weights=run.scaled[positions], minlength=run.groups)
    found = clustered_mean(sums, counts, level=0.6827)
    if found.value is None or found.high is None:
        return found.value or 0.0, math.inf
    return found.value, max(found.high - found.value, 1e-6)


def _latency_split(run: Evidence, timed: Ints) -> tuple[int, float]:
    logs = np.log(run.verify_seconds[timed] + 1e-6)
    width = max(1, len(timed) // POINTS)
    whole = len(timed) // width * width
    point, z = best_split(logs[:whole].reshape(-1, width).mean(axis=1))
    return point * width, z


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times slower" if ratio > 1 else f"{1 / ratio:,.0f} times faster"
