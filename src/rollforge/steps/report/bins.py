"""Binned data for the charts: every query returns a few hundred numbers, however large the run is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.index import Index, floats
from rollforge.statistics import intervals, stats

Floats = NDArray[np.float64]

LENGTH_BINS = 12
TIME_BINS = 60
PER_WINDOW = 40
"""Rollouts a window of the time line should hold, so that its mean says something."""
STRIP_TASKS = 140
STRIP_SAMPLES = 32


class LengthBin(Struct, frozen=True, kw_only=True):
    """Rollouts with answers of similar length."""

    low: float
    high: float
    middle: float
    """The median length: the last bin reaches as far as the longest answer."""
    n: int
    judged: int
    mean: float | None
    ci: list[float] | None


def first_stage(index: Index) -> str | None:
    """The condition for rollouts that did not depend on earlier rewards; None for a run that was not sampled adaptively."""
    return index.first_stage


def reward_by_length(index: Index) -> list[LengthBin]:
    """Mean reward per quantile of the answer's length, with an interval clustered by task."""
    values = index.floats(["answer_chars", "reward", "task"], first_stage(index))
    length, reward, task = values["answer_chars"], values["reward"], values["task"]
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


def clustered(values: Floats, task: Floats) -> intervals.Estimate:
    """The mean of the known values with an interval that treats the samples of a task as related."""
    has_value = ~np.isnan(values)
    values, task = values[has_value], task[has_value]
    if not len(values):
        return intervals.clustered_mean(np.zeros(0), np.zeros(0))
    _, group = np.unique(task, return_inverse=True)
    is_share = bool(((values == 0) | (values == 1)).all())
    return intervals.clustered_mean(
        np.bincount(group, values), np.bincount(group).astype(np.float64), is_share=is_share
    )


class Window(Struct, frozen=True, kw_only=True):
    """One stretch of the run's active time."""

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
    """Median seconds of the rollouts started here."""
    where: str = ""
    """The condition that selects them."""


class Timeline(Struct, frozen=True, kw_only=True):
    """The run over its active time: pauses in which nothing was in flight are cut out."""

    windows: Sequence[Window]
    pauses: int
    paused_s: float
    begun: float
    cuts: Sequence[tuple[float, float]]
    """(clock time, seconds cut out before it), ascending; maps clock time to active time."""

    def active(self, clock: float) -> float:
        """Active seconds at a clock time."""
        passed = clock - self.begun
        for at, cut in self.cuts:
            if clock >= at:
                passed -= cut
        return max(0.0, passed)


def timeline(index: Index) -> Timeline | None:
    """Reward, speed, failures and requests in flight over time; None when rows do not say when they started."""
    values = index.floats(["started", "seconds", "reward", "task", "row"])
    if (
        stage := first_stage(index)
    ) is not None:  # later samples are of tasks that were chosen by their rewards
        is_first = np.isin(values["row"], index.floats(["row"], stage)["row"])
        values["reward"] = np.where(is_first, values["reward"], np.nan)
    has_start = ~np.isnan(values["started"])
    if int(has_start.sum()) < 2:
        return None
    begin = values["started"][has_start]
    took = np.nan_to_num(values["seconds"][has_start])
    order = np.argsort(begin, kind="stable")
    begin, took = begin[order], took[order]
    reward, task = values["reward"][has_start][order], values["task"][has_start][order]
    cuts = _pauses(begin, begin + took)
    line = Timeline(
        windows=(), pauses=len(cuts), paused_s=sum(cut for _, cut in cuts), begun=float(begin[0]), cuts=cuts
    )
    active, ends = _activity(begin, line), np.sort(_activity(begin + took, line))
    failed = _failure_times(index)
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
    """(clock time at which work went on, seconds before it in which nothing was in flight), for pauses that matter."""
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
    task: Floats,
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
    """Scaled to 0 … 1 over the run; None is unjudged."""
    judged: int
    mean: float | None


class Strip(Struct, frozen=True, kw_only=True):
    """Tasks from hardest to easiest."""

    shown: Sequence[StripTask]
    of: int
    """Tasks in the run."""
    samples: int
    low: float
    high: float


def strip(index: Index) -> Strip | None:
    """The rewards of evenly spaced tasks, ordered by mean reward; None when no task has a judged rollout."""
    stage = first_stage(index) or "true"
    means = index.select(
        f"SELECT task, avg(reward) AS mean, min(reward) AS low, max(reward) AS high FROM rollouts WHERE {stage} GROUP BY task"
    )
    task, mean, low, high = (floats(means.column(name)) for name in ("task", "mean", "low", "high"))
    if not len(task) or np.isnan(mean).all():
        return None
    least, most = float(np.nanmin(low)), float(np.nanmax(high))
    order = np.lexsort((task, mean))  # unjudged tasks last
    count = min(STRIP_TASKS, len(order))
    chosen = (
        task[order[np.linspace(0, len(order) - 1, count).round().astype(np.int64)]].astype(np.int64).tolist()
    )
    names = ", ".join(map(str, chosen))
    rows = index.select(
        f"SELECT task, reward FROM rollouts WHERE task IN ({names}) AND {stage} ORDER BY task, rollout, row"
    )
    rewards: dict[int, list[float | None]] = {one: [] for one in chosen}
    for one, reward in zip(rows.column("task").to_pylist(), rows.column("reward").to_pylist(), strict=True):
        rewards[one].append(None if reward is None or not math.isfinite(reward) else reward)
    span = most - least
    shown = []
    for one in chosen:
        judged = [value for value in rewards[one] if value is not None]
        scaled = [
            None if value is None else (value - least) / span if span else 1.0 for value in rewards[one]
        ]
        shown.append(
            StripTask(
                task=one,
                rewards=scaled,
                judged=len(judged),
                mean=sum(judged) / len(judged) if judged else None,
            )
        )
    samples = min(STRIP_SAMPLES, max(len(one.rewards) for one in shown))
    return Strip(shown=shown, of=len(task), samples=samples, low=least, high=most)


class TokenBins(Struct, frozen=True, kw_only=True):
    """Output tokens per rollout."""

    edges: list[float]
    counts: list[int]
    missing: int


def output_tokens(index: Index) -> TokenBins | None:
    """The distribution of output tokens; None when no rollout says how many it took."""
    if "output_tokens" not in index.numbers:
        return None
    values = index.floats(["output_tokens"])["output_tokens"]
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


def read_bins(index: Index) -> RunBins:
    """Everything that the charts read from the index itself."""
    return RunBins(
        lengths=reward_by_length(index),
        strip=strip(index),
        timeline=timeline(index),
        tokens=output_tokens(index),
    )
