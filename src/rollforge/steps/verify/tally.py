"""The summary of one verification, with a mean reward that says what it is over."""

from __future__ import annotations

import msgspec

from rollforge.statistics.intervals import ClusterMean
from rollforge.steps.verify.judge_cost import JudgeSpending


class RewardEstimate(msgspec.Struct, frozen=True):
    """A mean over `n` values; the 95 % interval is None with fewer than two tasks."""

    mean: float | None
    ci: tuple[float, float] | None
    n: int
    tasks: int


def estimate_of(rewards: ClusterMean) -> RewardEstimate:
    """The running mean as the record that summaries hold."""
    mean = rewards.estimate()
    has_interval = mean.low is not None and mean.high is not None
    return RewardEstimate(
        mean=mean.value,
        ci=(mean.low, mean.high) if has_interval else None,  # type: ignore[arg-type]
        n=rewards.count,
        tasks=mean.groups,
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
    cost: JudgeSpending | None = None
    """What the judge model was paid; None when no price was given."""
    is_over_budget: bool = False
    """--max-cost ended it; the rollouts that are owed wait for a larger one."""
    bad_lines: list[tuple[int, str]] = []
    notes: list[str] = []

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import decimal, interval, result, table

        rows = [
            ("rollouts", f"{self.rollouts:,}"),
            ("judged", f"{self.judged:,}"),
            ("could not judge", f"{self.unjudged:,}"),
            ("failed", f"{self.failed:,}"),
            ("mean reward", decimal(self.reward.mean)),
            ("95 % interval", interval(self.reward.ci)),
        ]
        failures = [[text, f"{count:,}"] for text, count in self.failures.items()]
        return result(
            f"{self.run} judged by {self.verifier}: {self.state}",
            table(("", ""), rows),
            table(("failure of the verifier", "count"), failures) if failures else None,
        )
