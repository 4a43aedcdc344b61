"""This module adds verdicts up: a mean that says what it is over, with an interval that knows that samples of a task are kin."""

from __future__ import annotations

import msgspec

from rollforge.stats import clustered_mean


class Estimate(msgspec.Struct, frozen=True):
    """A mean over `n` values; the 95 % interval is None when fewer than two tasks are behind it."""

    mean: float | None
    ci: tuple[float, float] | None
    n: int
    tasks: int


class ClusterMean:
    """Sums per task, so that the interval can treat a task's samples as kin."""

    def __init__(self) -> None:
        self._sum_by_task: dict[int, float] = {}
        self._count_by_task: dict[int, int] = {}
        self._count = 0
        self._total = 0.0
        self._is_share = True

    @property
    def mean(self) -> float | None:
        """The mean so far, at no cost."""
        return self._total / self._count if self._count else None

    def add(self, task: int, value: float) -> None:
        self._count += 1
        self._total += value
        self._is_share = self._is_share and value in (0.0, 1.0)
        self._sum_by_task[task] = self._sum_by_task.get(task, 0.0) + value
        self._count_by_task[task] = self._count_by_task.get(task, 0) + 1

    def estimate(self) -> Estimate:
        """Mean and interval."""
        sums, counts = list(self._sum_by_task.values()), list(self._count_by_task.values())
        found = clustered_mean(sums, counts, is_share=self._is_share and len(counts) > 1)
        is_known = found.low is not None and found.high is not None
        return Estimate(
            mean=found.value,
            ci=(found.low, found.high) if is_known else None,  # type: ignore[arg-type]
            n=self._count,
            tasks=found.groups,
        )


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
