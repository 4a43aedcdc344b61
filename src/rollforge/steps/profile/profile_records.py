"""Run-level results of `profile`, in the form of its JSON."""

from __future__ import annotations

from msgspec import Struct

BANDS = ("never solved", "hard", "mixed", "easy", "always solved")
"""Bands of the pass rate p: 0; up to ¼; in between; from ¾; 1."""


class NoSignal(Struct, kw_only=True):
    """Groups whose rewards are all equal, from which GRPO gets no gradient."""

    tasks: int
    share: float | None
    of: int
    """Number of tasks with at least two judged rollouts."""
    tolerance: float


class Yield(Struct, kw_only=True):
    """The expected share of groups of k with more than one reward."""

    k: int
    value: float | None
    is_exact: bool
    """False if k exceeds the samples of some task; then extrapolated with a beta-binomial fit over all tasks."""
    tasks: int
    """Number of tasks behind it: those with at least two judged rollouts."""


class VarianceParts(Struct, kw_only=True):
    """Variance components of the reward."""

    between_tasks: float | None
    within_tasks: float | None
    intraclass: float | None


class Look(Struct, kw_only=True):
    """A task to review."""

    task: int
    why: str
    pass_rate: float | None = None
    mean_reward: float | None = None
    std_reward: float | None = None
    judged: int = 0
    value: float | None = None
    """The value by which it is ranked."""


class ProfileSummary(Struct, kw_only=True):
    """Run-level summary of a profile."""

    run: str
    tasks: int
    rollouts: int
    judged: int
    expected: int | None
    rejected_lines: int
    noted_lines: int
    """Odd rows that still count."""
    duplicates: int
    threshold: float
    bands: dict[str, int]
    unjudged_tasks: int
    no_signal: NoSignal
    group_yield: list[Yield]
    variance: VarianceParts
    tokens_per_success: float | None
    """Output tokens of judged rollouts per successful rollout."""
    reward_against_length: float | None
    """Within-task correlation of reward and answer length, pooled over tasks."""
    look: dict[str, list[Look]]
    adaptive: str | None = None
    """Effect of adaptive sampling on these numbers; null for a run with uniform sampling."""
    files: dict[str, str] = {}
