"""Binned data for the charts: a few hundred numbers, whatever the size of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from rollforge.adaptive.design import stage_condition
from rollforge.index import ByTask, Index, SharedGroups, floats
from rollforge.statistics import intervals, stats
from rollforge.statistics.stats import Floats, Ints

LENGTH_BINS = 12
TIME_BINS = 60
PER_WINDOW = 40
"""Fewest rollouts per window of the time line, for a meaningful mean."""
STRIP_TASKS = 140
STRIP_SAMPLES = 32


class LengthBin(Struct, frozen=True, kw_only=True):
    """Rollouts with answers of similar length."""

    low: float
    high: float
    middle: float
    """Median length in the bin, because the last bin extends to the longest answer."""
    n: int
    judged: int
    mean: float | None
    ci: list[float] | None


def reward_by_length(rows: ByTask) -> list[LengthBin]:
    """Mean reward per quantile of answer length, with an interval clustered by task."""
    length, reward, task = rows.one("answer_chars"), rows.one("reward"), rows.task
    has_length = ~np.isnan(length)
    if not has_length.any():
        return []
    edges = np.quantile(length[has_length], np.linspace(0, 1, LENGTH_BINS + 1))
    edges = edges[np.append(True, np.diff(edges) > 0)]
    if len(edges) < 2:
        edges = np.array([edges[0], edges[0] + 1])
    bin_number = np.clip(np.searchsorted(edges, length, side="right") - 1, 0, len(edges) - 2).astype(np.int8)
    bin_number[~has_length] = -1
    bins = []
    for number in range(len(edges) - 1):
        chosen = np.flatnonzero(bin_number == number)
        mean = clustered(reward[chosen], task[chosen])
        bins.append(
            LengthBin(
                low=float(edges[number]),
                high=float(edges[number + 1]),
                middle=stats.median(length[chosen]) if len(chosen) else float(edges[number]),
                n=len(chosen),
                judged=int((~np.isnan(reward[chosen])).sum()),
                mean=mean.value,
                ci=mean.ci,
            )
        )
    return bins


def clustered(values: Floats, task: Ints) -> intervals.Estimate:
    """Mean of the non-missing values with an interval clustered by task."""
    has_value = ~np.isnan(values)
    values, task = values[has_value], task[has_value]
    if not len(values):
        return intervals.clustered_mean(np.zeros(0), np.zeros(0))
    is_new = task[1:] != task[:-1]
    if (task[1:] >= task[:-1]).all():
        group = np.append(0, np.cumsum(is_new))
    else:
        _, group = np.unique(task, return_inverse=True)
    is_share = bool(((values == 0) | (values == 1)).all())
    estimate = intervals.clustered_mean(
        np.bincount(group, values), np.bincount(group).astype(np.float64), is_share=is_share
    )
    return estimate if math.isfinite(estimate.value or 0.0) else estimate._replace(value=None)


class Window(Struct, frozen=True, kw_only=True):
    """One window of the run's active time."""

    start: float
    """Seconds of active time since the first request."""
    end: float
    started: int
    finished: int
    failed: int
    in_flight: float
    reward: float | None
    ci: list[float] | None
    judged: int
    seconds: float | None
    """Median duration in seconds of the rollouts started in this window."""
    where: str = ""
    """SQL condition that selects them."""


class Timeline(Struct, frozen=True, kw_only=True):
    """The run over its active time, that is without pauses in which nothing was in flight."""

    windows: Sequence[Window]
    pauses: int
    paused_s: float
    begun: float
    cuts: Sequence[tuple[float, float]]
    """(clock time, seconds removed before it), ascending; converts clock time to active time."""

    def active(self, clock: float) -> float:
        """Active time in seconds at a clock time."""
        passed = clock - self.begun
        for at, cut in self.cuts:
            if clock >= at:
                passed -= cut
        return max(0.0, passed)


def timeline(everything: ByTask, first: ByTask) -> Timeline | None:
    """Reward, speed, failures and requests in flight over time; None if rows have no start times."""
    started, reward = everything.one("started"), everything.one("reward")
    if first is not everything:  # later samples are of tasks that were chosen by their rewards
        is_first = np.isin(everything.one("row"), first.one("row"))
        reward = np.where(is_first, reward, np.nan)
    has_start = ~np.isnan(started)
    if int(has_start.sum()) < 2:
        return None
    chosen = np.flatnonzero(has_start)
    chosen = chosen[np.argsort(started[chosen], kind="stable")]
    begin, took = started[chosen], np.nan_to_num(everything.one("seconds")[chosen])
    reward, task = reward[chosen], everything.task[chosen]
    cuts = _pauses(begin, begin + took)
    line = Timeline(
        windows=(), pauses=len(cuts), paused_s=sum(cut for _, cut in cuts), begun=float(begin[0]), cuts=cuts
    )
    active, ends = _activity(begin, line), np.sort(_activity(begin + took, line))
    failed = _failure_times(everything.index)
    total = max(float(ends[-1]), 1e-9)
    edges = np.linspace(0, total, min(TIME_BINS, max(4, len(active) // PER_WINDOW)) + 1)
    failed_at = np.sort(_activity(failed, line)) if len(failed) else failed
    windows = [
        _window(low, high, begin, active, ends, failed_at, reward, task, took)
        for low, high in pairwise(edges.tolist())
    ]
    return Timeline(
        windows=windows, pauses=line.pauses, paused_s=line.paused_s, begun=line.begun, cuts=line.cuts
    )


def _pauses(begin: Floats, end: Floats) -> list[tuple[float, float]]:
    """(clock time at the end of a pause, its length in seconds), for relevant pauses."""
    reached = np.maximum.accumulate(end)
    gaps = begin[1:] - reached[:-1]
    least = max(5.0, 0.02 * float(reached[-1] - begin[0]))
    return [
        (float(begin[position + 1]), float(gaps[position]))
        for position in np.flatnonzero(gaps > least).tolist()
    ]


def _activity(clock: Floats, line: Timeline) -> Floats:
    passed = clock - line.begun
    for at, cut in line.cuts:
        passed = passed - np.where(clock >= at, cut, 0.0)
    return np.maximum(passed, 0.0)


def _failure_times(index: Index) -> Floats:
    if not index.has_failures:
        return np.zeros(0)
    times = index.select('SELECT "at" FROM failures WHERE "at" IS NOT NULL').column(0)
    return floats(times)


def _window(
    low: float,
    high: float,
    clock: Floats,
    begin: Floats,
    ends: Floats,
    failed: Floats,
    reward: Floats,
    task: Ints,
    took: Floats,
) -> Window:
    first, last = np.searchsorted(begin, [low, high])
    if high >= begin[-1]:
        last = len(begin)
    mean = clustered(reward[first:last], task[first:last])
    middle = (low + high) / 2
    flying = int(np.searchsorted(begin, middle, side="right")) - int(
        np.searchsorted(ends, middle, side="right")
    )
    return Window(
        start=float(low),
        end=float(high),
        started=int(last - first),
        finished=_between(ends, low, high),
        failed=_between(failed, low, high) if len(failed) else 0,
        in_flight=float(max(0, flying)),
        reward=mean.value,
        ci=mean.ci,
        judged=int((~np.isnan(reward[first:last])).sum()),
        seconds=stats.median(took[first:last]) if last > first else None,
        where=f"started BETWEEN {float(clock[first])!r} AND {float(clock[last - 1])!r}"
        if last > first
        else "",
    )


def _between(values: Floats, low: float, high: float) -> int:
    side = "right" if len(values) and high >= values[-1] else "left"
    return int(np.searchsorted(values, high, side=side)) - int(np.searchsorted(values, low))  # type: ignore[call-overload]


class StripTask(Struct, frozen=True, kw_only=True):
    """The samples of one task."""

    task: int
    rewards: list[float | None]
    """Rewards scaled to 0 … 1 over the run; None for an unjudged sample."""
    judged: int
    mean: float | None


class Strip(Struct, frozen=True, kw_only=True):
    """Tasks sorted from hardest to easiest."""

    shown: Sequence[StripTask]
    of: int
    """Number of tasks in the run."""
    samples: int
    low: float
    high: float


def strip(rows: ByTask) -> Strip | None:
    """Rewards of evenly spaced tasks, sorted by mean reward; None if no task has a judged rollout."""
    reward = rows.one("reward")
    sums, counts = rows.sums(reward)
    mean = sums / np.where(counts > 0, counts, np.nan)
    if not counts.any():
        return None
    least, most = float(np.nanmin(reward)), float(np.nanmax(reward))
    order = np.argsort(mean, kind="stable")  # unjudged tasks last
    count = min(STRIP_TASKS, len(order))
    chosen = order[np.linspace(0, len(order) - 1, count).round().astype(np.int64)].tolist()
    span = most / 2 - least / 2  # in halves, since the width of a huge range overflows
    shown = []
    for one in chosen:
        begin, end = rows.starts[one], rows.starts[one] + rows.sizes[one]
        rewards = [value if np.isfinite(value) else None for value in reward[begin:end].tolist()]
        judged = [value for value in rewards if value is not None]
        scaled = [
            None if value is None else (value / 2 - least / 2) / span if span else 1.0 for value in rewards
        ]
        shown.append(
            StripTask(
                task=int(rows.tasks[one]),
                rewards=scaled,
                judged=len(judged),
                mean=sum(judged) / len(judged) if judged else None,
            )
        )
    samples = min(STRIP_SAMPLES, max(len(one.rewards) for one in shown))
    return Strip(shown=shown, of=len(rows.tasks), samples=samples, low=least, high=most)


class TokenBins(Struct, frozen=True, kw_only=True):
    """Distribution of output tokens per rollout."""

    edges: list[float]
    counts: list[int]
    missing: int


def output_tokens(rows: ByTask) -> TokenBins | None:
    """Distribution of output tokens; None if no rollout has a count."""
    if "output_tokens" not in rows.index.numbers:
        return None
    values = rows.one("output_tokens")
    finite_values = values[np.isfinite(values)]
    if not len(finite_values):
        return None
    histogram = stats.histogram(finite_values, 24)
    return TokenBins(edges=histogram.edges, counts=histogram.counts, missing=len(values) - len(finite_values))


class RunBins(Struct, frozen=True, kw_only=True):
    """All binned data of a run's charts."""

    lengths: list[LengthBin]
    strip: Strip | None
    timeline: Timeline | None
    tokens: TokenBins | None


@np.errstate(over="ignore", invalid="ignore")  # rewards near the largest float have no mean
def read_bins(index: Index, groups: SharedGroups | None = None) -> RunBins:
    """Read all binned data from the index; `groups` is its shared cache of grouped columns, if other steps use it too."""
    groups = groups or SharedGroups(index)
    everything, first = groups.get(), groups.get(stage_condition(None, index.first_stage))
    return RunBins(
        lengths=reward_by_length(first),
        strip=strip(first),
        timeline=timeline(everything, first),
        tokens=output_tokens(everything),
    )
