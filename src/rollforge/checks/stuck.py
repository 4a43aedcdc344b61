"""A stretch of equal rewards in a run whose rewards differ: a verifier that stopped judging for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.chance import Stretch, chance_all_same, longest_stretches
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Share, share
from rollforge.checks.building_blocks.order import (
    honest_reason,
    location_of,
    most_at_end,
    task_means,
    timed,
    when,
    width_around,
)
from rollforge.statistics.stats import Ints, variance_parts

NEAR = 40
FEW = 8
ALIKE = 0.3
"""Assumed intraclass correlation within tasks where it cannot be estimated."""

COMMON = 0.95
"""If the reward is at least this common elsewhere, a long stretch of it proves nothing."""
RUNS = 5


@check("stuck-rewards", "verification", chance=1e-4, min_tasks=8)
def stuck_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """For a stretch of the run all rewards are equal, unlike before and after."""
    if len(run.levels) < 2:
        return
    order = timed(run)
    rewards = run.reward[order]
    for stretch in longest_stretches(rewards, RUNS):
        inside = order[stretch.start : stretch.start + stretch.length]
        counts = np.bincount(run.group[inside])
        counts = counts[counts > 0]
        if len(counts) < limits["min_tasks"]:
            continue
        alike = _alike(run, inside, stretch.value)
        usual = _usual(run, order, stretch, alike)
        if usual is None or usual.share >= 1:
            continue
        tries = len(rewards) / stretch.length
        if chance_all_same(counts, 1 - usual.share, alike) * tries < limits["chance"]:
            drifts = chance_all_same(counts, max(1 - usual.at_edge, 0.0), alike) * tries >= limits["chance"]
            reason = _reason(run, order, stretch, usual, drifts=drifts)
            yield _stuck(run, order, stretch, usual.share, limits["chance"], reason)
            return


class _Usual(NamedTuple):
    """Upper bounds of how common the stretch's reward is elsewhere."""

    share: float
    """The largest share before the stretch, after it, or in other rollouts of the same tasks. In a sorted file one of them is
    large.
    """
    at_edge: float
    """The share extrapolated to the edge of the stretch if there is a significant drift; the smaller of both sides, as sorted
    files drift one way.
    """
    is_controlled: bool
    """Most of its tasks have rollouts outside the stretch, so the tasks are not the reason."""
    is_thin: bool
    """Fewer than NEAR rollouts lie on either side: too few to tell a verifier that broke from tasks in an order."""


def _alike(run: Evidence, inside: Ints, value: float) -> float:
    """Intraclass correlation of this reward outside the stretch, rounded up."""
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


def _usual(run: Evidence, order: Ints, stretch: Stretch, alike: float) -> _Usual | None:
    """How common the stretch's reward is elsewhere; None with too little data for an estimate."""
    end, width = stretch.start + stretch.length, width_around(run)
    before, after = order[max(0, stretch.start - width) : stretch.start][::-1], order[end : end + width]
    sides = [side for side in (before, after) if len(side) >= NEAR]
    shares = [_share_beside(run, side, stretch.value, alike) for side in sides]
    elsewhere = _share_elsewhere(run, order, stretch, alike)
    if elsewhere is not None:
        shares.append(elsewhere)
    # A side too short for an interval can still show that the reward is the usual one there. Alone, it proves no more than its
    # upper bound.
    short = [
        _share_in(run, side, stretch.value, alike) for side in (before, after) if FEW <= len(side) < NEAR
    ]
    shares += [estimate.value if shares else estimate.high for estimate in short]
    if not shares:
        return None
    is_same = (run.reward == stretch.value).astype(np.float64)
    edges = [most_at_end(*task_means(run, side[::-1], is_same)) for side in sides]
    return _Usual(max(shares), min(edges, default=0.0), elsewhere is not None, is_thin=not sides)


def _share_in(run: Evidence, positions: Ints, value: float, alike: float) -> Share:
    counts = np.bincount(run.group[positions])
    counts = counts[counts > 0]
    worth = float((counts / (1 + alike * (counts - 1))).sum())
    return share(int((run.reward[positions] == value).sum()), len(positions), independent=worth)


def _share_beside(run: Evidence, beside: Ints, value: float, alike: float) -> float:
    """Upper bound of the share on one side (`beside`: nearest first); of the near part only, if the share rises towards the
    stretch.
    """
    near_width = max(NEAR, 10 * run.samples)
    near, far = (_share_in(run, part, value, alike) for part in (beside[:near_width], beside))
    return near.high if near.low > far.value else far.high


def _share_elsewhere(run: Evidence, order: Ints, stretch: Stretch, alike: float) -> float | None:
    """Upper bound of the share in other rollouts of the stretch's tasks; None unless most of these tasks have some."""
    inside = order[stretch.start : stretch.start + stretch.length]
    tasks = np.bincount(run.group[inside], minlength=run.groups) > 0
    is_outside = run.judged & tasks[run.group]
    is_outside[inside] = False
    if int((run.per_group(is_outside) > 0).sum()) < 0.5 * int(tasks.sum()):
        return None
    return _share_in(run, np.flatnonzero(is_outside), stretch.value, alike).high


def _reason(run: Evidence, order: Ints, stretch: Stretch, usual: _Usual, *, drifts: bool) -> str:
    """An innocent reason for the stretch; empty if there is none."""
    if usual.share > COMMON:
        return "the reward is the usual one there too, and tasks may be sorted by difficulty"
    if usual.is_controlled:
        return ""
    if usual.is_thin:
        return f"fewer than {NEAR} rollouts lie beside it, so tasks may be sorted by difficulty"
    if drifts:
        return "rewards drift towards it beside them"
    end = stretch.start + stretch.length
    return honest_reason(run, order[stretch.start : end], order[: stretch.start], order[end:])


def _stuck(run: Evidence, order: Ints, stretch: Stretch, usual: float, limit: float, reason: str) -> Finding:
    end = stretch.start + stretch.length
    first, last = int(order[stretch.start]), int(order[end - 1])
    text = (
        f"{stretch.length:,} rewards in a row are {stretch.value:g}, from {when(run, first)}"
        f"{' to the end' if end == len(order) else f' to line {run.line[last]:,}'}; around them at most {usual:.0%} are"
    )
    among = f'--where "line between {run.line[first]} and {run.line[last]}"'
    if reason:
        text += f"; {reason}, which may explain it"
    return Finding(
        level="warning" if reason else "error",
        text=text,
        value=stretch.value,
        threshold=limit,
        n=stretch.length,
        where=[location_of(run, first, last)],
        next=f"judge the stretch again: {run.verify(f'--fresh {among}', f'{among} --limit 5')}",
    )
