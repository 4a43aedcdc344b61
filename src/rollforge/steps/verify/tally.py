"""The summary of one verification, with a mean reward that says what it is over."""

from __future__ import annotations

import msgspec

from rollforge.intervals import ClusterMean


class RewardEstimate(msgspec.Struct, frozen=True):
    """A mean over `n` values; the 95 % interval is None when fewer than two tasks are behind it."""

    mean: float | None
    ci: tuple[float, float] | None
    n: int
    tasks: int


def estimate_of(rewards: ClusterMean) -> RewardEstimate:
    """The running mean as the record that summaries hold."""
    found = rewards.estimate()
    has_interval = found.low is not None and found.high is not None
    return RewardEstimate(
        mean=found.value,
        ci=(found.low, found.high) if has_interval else None,  # type: ignore[arg-type]
        n=rewards.count,
        tasks=found.groups,
    )


class VerifySummary(msgspec.Struct, kw_only=True):
    """The outcome of one verification, and the run's state with this verifier."""

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
    reward: RewardEstimate
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
