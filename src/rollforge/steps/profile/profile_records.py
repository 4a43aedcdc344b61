"""What `profile` says about a run as a whole, as it is printed in JSON."""

from __future__ import annotations

from msgspec import Struct

BANDS = ("never solved", "hard", "mixed", "easy", "always solved")
"""By pass rate p: 0; up to ¼; between; from ¾; 1."""


class NoSignal(Struct, kw_only=True):
    """Groups whose rewards are all the same: GRPO learns nothing from them."""

    tasks: int
    share: float | None
    of: int
    """Tasks with at least two judged rollouts."""
    tolerance: float


class Yield(Struct, kw_only=True):
    """The expected share of groups of k with more than one reward."""

    k: int
    value: float | None
    is_exact: bool
    """False where k exceeds the samples of some task: extrapolated with a beta-binomial fit over all tasks."""
    tasks: int
    """Tasks it is over: those with at least two judged rollouts."""


class VarianceParts(Struct, kw_only=True):
    """How the spread of the reward divides."""

    between_tasks: float | None
    within_tasks: float | None
    intraclass: float | None


class Look(Struct, kw_only=True):
    """A task that deserves a look."""

    task: int
    why: str
    pass_rate: float | None = None
    mean_reward: float | None = None
    std_reward: float | None = None
    judged: int = 0
    value: float | None = None
    """The number it is ranked by."""


class ProfileSummary(Struct, kw_only=True):
    """What the profile says about the run."""

    run: str
    tasks: int
    rollouts: int
    judged: int
    expected: int | None
    rejected_lines: int
    noted_lines: int
    """Rows that count although something about them is odd."""
    duplicates: int
    threshold: float
    bands: dict[str, int]
    unjudged_tasks: int
    no_signal: NoSignal
    group_yield: list[Yield]
    variance: VarianceParts
    tokens_per_success: float | None
    """Output tokens of the judged rollouts, spent per successful one."""
    reward_against_length: float | None
    """Correlation of reward and answer length inside tasks, all tasks together."""
    look: dict[str, list[Look]]
    adaptive: str | None = None
    """What adaptive sampling means for these numbers; null for a run in which every task was to get the same number of samples."""
    files: dict[str, str] = {}
