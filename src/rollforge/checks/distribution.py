"""Distribution of rewards: too high, too low, too narrow, clustered, noisy in the middle; and the number of rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level

LEAST = 20
"""Fewest judged rollouts for a statement about the distribution."""


@check("mean-too-low", "distribution", min_mean=0.3)
def mean_too_low(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The mean reward is low: tasks may be too hard."""
    limit, mean = limits["min_mean"], run.mean
    if run.judged_n < LEAST or mean.value is None or mean.value >= limit:
        return
    is_clear = mean.high is not None and mean.high < limit
    yield _mean_finding(
        run, "warning" if is_clear else "note", limit, "low: tasks may be too hard for this model"
    )


@check("mean-too-high", "distribution", max_mean=0.9)
def mean_too_high(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The mean reward is high: there may be nothing left to learn."""
    limit, mean = limits["max_mean"], run.mean
    if run.judged_n < LEAST or mean.value is None or mean.value <= limit:
        return
    is_clear = mean.low is not None and mean.low > limit
    yield _mean_finding(
        run, "warning" if is_clear else "note", limit, "high: there may be little left to learn"
    )


def _mean_finding(run: Evidence, level: Level, limit: float, what: str) -> Finding:
    assert run.mean.value is not None
    solved, lost = _solved(run)
    return Finding(
        level=level,
        text=f"the mean scaled reward is {run.mean.value:.2f}, {what}; {solved:.0%} of tasks are always solved, {lost:.0%} never"
        f"{run.range.note}",
        value=run.mean.value,
        threshold=limit,
        n=run.judged_n,
        interval=run.mean.ci,
        next=f"see rewards per task: rollforge profile {run.name}",
    )


def _solved(run: Evidence) -> tuple[float, float]:
    is_judged = run.profile.n > 0
    low, high = run.scaled_profile.min[is_judged], run.scaled_profile.max[is_judged]
    return float((low >= run.success_at).mean()), float((high < run.success_at).mean())


@check("narrow-spread", "distribution", min_std=0.1)
def narrow_spread(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards hardly differ."""
    if run.judged_n < LEAST or len(run.levels) < 2:
        return
    std = float(np.std(run.scaled[run.judged], ddof=1))
    if std >= limits["min_std"]:
        return
    yield Finding(
        level="warning",
        text=f"the standard deviation of scaled rewards is {std:.3f}: they hardly tell rollouts apart{run.range.note}",
        value=std,
        threshold=limits["min_std"],
        n=run.judged_n,
        next="use a verifier that gives partial credit, or tasks of other difficulty",
    )


@check("clustered-rewards", "distribution", max_share=0.9)
def clustered_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Nearly all rewards lie in one bin, or in one peak at the middle."""
    if run.judged_n < 5 * LEAST or len(run.levels) < 5:
        return
    counts = run.tenths
    top = float(counts.max() / counts.sum())
    if top > limits["max_share"]:
        tenth = int(counts.argmax())
        text = f"{top:.0%} of scaled rewards lie between {tenth / 10:.1f} and {tenth / 10 + 0.1:.1f}{run.range.note}"
    elif _is_middle_peak(counts) and _is_noise(run):
        top = float(counts[3:7].sum() / counts.sum())
        text = f"{top:.0%} of scaled rewards lie in one peak around the middle, and tasks hardly differ: verification may be noisy"
    else:
        return
    yield Finding(
        level="warning",
        text=text,
        value=top,
        threshold=limits["max_share"],
        n=run.judged_n,
        next="check the verifier on answers you have judged yourself; a judge that is unsure answers in the middle",
    )


def _is_middle_peak(counts: np.ndarray) -> bool:
    middle = counts[3:7].sum()
    rises, falls = np.diff(counts[:5]) >= 0, np.diff(counts[5:]) <= 0
    return bool(middle > 0.7 * counts.sum() and rises.mean() >= 0.75 and falls.mean() >= 0.75)


def _is_noise(run: Evidence) -> bool:
    """Whether tasks differ less than samples of one task do."""
    many = run.profile.n > 1
    if int(many.sum()) < LEAST:
        return True
    within = float(np.nanmean(run.scaled_profile.std[many] ** 2))
    return float(np.nanvar(run.scaled_profile.mean[many])) < within


@check("reward-bins", "distribution")
def reward_bins(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Counts of rewards per bin, as a note."""
    if run.judged_n < LEAST or len(run.levels) < 2:
        return
    shares = (run.fifths / run.judged_n).tolist()
    bins = ", ".join(
        f"{fifth / 5:.1f}–{fifth / 5 + 0.2:.1f}: {item:.0%}" for fifth, item in enumerate(shares)
    )
    yield Finding(
        level="note",
        text=f"scaled rewards by fifths: {bins}{run.range.note}",
        value=max(shares),
        n=run.judged_n,
        next=f"see more: rollforge metrics {run.name}",
    )


@check("volume", "distribution", quick=1_000, typical=10_000, large=1_000_000)
def volume(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Number of rollouts, compared with usual training sizes."""
    n = run.judged_n
    if n < limits["quick"]:
        text = f"{n:,} judged rollouts: fewer than the {limits['quick']:,.0f} a quick iteration takes"
    elif n < limits["typical"]:
        text = f"{n:,} judged rollouts: enough for a quick iteration; training usually takes {limits['typical']:,.0f} or more"
    elif n < limits["large"]:
        text = f"{n:,} judged rollouts: what training usually takes"
    else:
        text = f"{n:,} judged rollouts: the scale of production runs"
    yield Finding(level="note", text=text, value=float(n), threshold=limits["quick"], n=n, next="")
