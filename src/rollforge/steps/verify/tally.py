"""Summary of a verification, with a mean reward and its sample size."""

from __future__ import annotations

import msgspec

from rollforge.adaptive.design import read_design
from rollforge.statistics.intervals import ClusterMean, Estimate
from rollforge.steps.verify.judge_cost import JudgeSpending
from rollforge.steps.verify.verdicts import Key
from rollforge.store import RunFiles, read_manifest


class RewardEstimate(msgspec.Struct, frozen=True):
    """Mean over `n` values; the 95 % interval is None with fewer than two tasks."""

    mean: float | None
    ci: tuple[float, float] | None
    n: int
    tasks: int
    first_stage: int | None = None
    """For an adaptive run: the number of first-stage samples that it covers, because later ones depend on them. None: all
    rollouts.
    """


class RolloutRewards(ClusterMean):
    """Running rewards of a run's rollouts; for an adaptive run, of its first stage."""

    def __init__(self, first_stage: int | None = None) -> None:
        super().__init__(may_be_share=True)
        self.first_stage = first_stage

    def counts_rollout(self, key: Key) -> bool:
        """Whether the mean is over this rollout's stage."""
        return self.first_stage is None or key[1] < self.first_stage

    def add_rollout(self, key: Key, reward: float) -> None:
        """Count a rollout, if its stage counts."""
        if self.counts_rollout(key):
            self.add(key[0], reward)


def rewards_of(files: RunFiles) -> RolloutRewards:
    """An empty tally for the rollouts of this run."""
    manifest = read_manifest(files)
    design = None if manifest is None else read_design(manifest.extra)
    return RolloutRewards(None if design is None else design.first)


def estimate_of(rewards: RolloutRewards) -> RewardEstimate:
    """The running mean as the record that summaries hold."""
    return reward_estimate(rewards.estimate(), n=rewards.count, first_stage=rewards.first_stage)


def reward_estimate(mean: Estimate, *, n: int, first_stage: int | None) -> RewardEstimate:
    """A mean with its interval, as the record that summaries hold."""
    has_interval = mean.low is not None and mean.high is not None
    return RewardEstimate(
        mean=mean.value,
        ci=(mean.low, mean.high) if has_interval else None,  # type: ignore[arg-type]
        n=n,
        tasks=mean.groups,
        first_stage=first_stage,
    )


class VerifySummary(msgspec.Struct, kw_only=True):
    """Outcome of a verification, and the run's state with this verifier."""

    run: str
    verifier: str
    fingerprint: str
    mode: str | None
    state: str
    """`done`, `incomplete` or `interrupted`."""
    rollouts: int
    """Selected rollouts of the run (by --where, --sample, --failed-only)."""
    judged: int
    """Selected rollouts that now have a reward from this verifier."""
    unjudged: int
    """Rollouts that the verifier declared unjudgeable."""
    failed: int
    """Rollouts for which the verifier failed; see the failures file."""
    owed: int
    """Rollouts that were not reached because verification stopped."""
    already: int
    """Rollouts judged earlier with the same fingerprint, and skipped now."""
    rejected_lines: int
    coverage: float | None
    """judged / rollouts."""
    reward: RewardEstimate
    calls: int
    """Number of verifier calls."""
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
    """The most frequent failure reasons with their counts."""
    cost: JudgeSpending | None = None
    """Cost of the judge model; None without a price."""
    is_over_budget: bool = False
    """Whether --max-cost ended it; owed rollouts need a larger budget."""
    bad_lines: list[tuple[int, str]] = []
    notes: list[str] = []

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import decimal, interval, result, table

        rows = [
            ("rollouts", f"{self.rollouts:,}"),
            ("judged", f"{self.judged:,}"),
            ("could not judge", f"{self.unjudged:,}"),
            ("failed", f"{self.failed:,}"),
            (
                "mean reward" if self.reward.first_stage is None else "mean reward of the first stage",
                decimal(self.reward.mean),
            ),
            ("95 % interval", interval(self.reward.ci)),
        ]
        failures = [[text, f"{count:,}"] for text, count in self.failures.items()]
        return result(
            f"{self.run} judged by {self.verifier}: {self.state}",
            table(("", ""), rows),
            table(("failure of the verifier", "count"), failures) if failures else None,
        )
