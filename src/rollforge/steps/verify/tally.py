"""This module adds verdicts up: a mean that says what it is over, with an interval that knows that samples of a task are kin."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

Z95 = 1.959963984540054


class Estimate(msgspec.Struct, frozen=True):
    """A mean over `n` values; the 95 % interval is None when fewer than two tasks are behind it."""

    mean: float | None
    ci: tuple[float, float] | None
    n: int
    tasks: int


class ClusterMean:
    """Sums per task, so that the interval can treat a task's samples as one draw."""

    def __init__(self) -> None:
        self._by_task: dict[int, tuple[int, float]] = {}

    def add(self, task: int, value: float) -> None:
        count, total = self._by_task.get(task, (0, 0.0))
        self._by_task[task] = (count + 1, total + value)

    def estimate(self) -> Estimate:
        return cluster_estimate(self._by_task.values())


def cluster_estimate(groups: Iterable[tuple[int, float]]) -> Estimate:
    """The mean of all values, from (count, sum) of each task, with a cluster-robust interval."""
    pairs = list(groups)
    n = sum(count for count, _ in pairs)
    if not n:
        return Estimate(None, None, 0, 0)
    mean = sum(total for _, total in pairs) / n
    tasks = len(pairs)
    if tasks < 2:
        return Estimate(mean, None, n, tasks)
    spread = sum((total - count * mean) ** 2 for count, total in pairs)
    half = Z95 * math.sqrt(spread * tasks / (tasks - 1)) / n
    return Estimate(mean, (mean - half, mean + half), n, tasks)


class Summary(msgspec.Struct, kw_only=True):
    """What one verification did, and where the run stands with this verifier now."""

    run: str
    verifier: str
    fingerprint: str
    mode: str | None
    state: str
    """`done`, `incomplete` or `interrupted`."""
    rollouts: int
    """Rollouts of the run that were asked for (after --where, --sample, --failed-only)."""
    judged: int
    """Of these, with a reward by this verifier now."""
    unjudged: int
    """The verifier said it cannot judge."""
    failed: int
    """The verifier failed; see the failures file."""
    owed: int
    """Not reached: verification was stopped."""
    already: int
    """Judged by earlier verification with the same fingerprint, and not judged again."""
    rejected_lines: int
    coverage: float | None
    """judged / rollouts."""
    reward: Estimate
    calls: int
    """How often the verifier itself was called."""
    shared: int
    cache_hits: int
    lookups: int
    hit_rate: float | None
    seconds: float
    seconds_per_verdict: float | None
    workers: int
    replaced_workers: int
    bottleneck: str
    failures: dict[str, int] = {}
    """The most frequent reasons of failure, and how often."""
    bad_lines: list[tuple[int, str]] = []
    notes: list[str] = []
