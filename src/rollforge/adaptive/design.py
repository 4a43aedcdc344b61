"""Adaptive runs: the manifest's record of how tasks were sampled, which statistics must take into account.

Where a task's first samples decide whether it gets more, plain means over all rollouts are biased: useful tasks have more of
them, and a group ends because of its rewards. The first stage has no such bias: every started task has all its first-stage
samples, whatever their rewards.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rollforge.records import JsonObject
from rollforge.runtime.typed_decoding import convert

DESIGN = "goal"
"""The manifest's key (in `extra`) for the design of an adaptive run."""

PROGRESS = "goal_progress"
"""The manifest's key (in `extra`) for how far the goal is."""


GOALS = {"grpo": "groups", "dpo": "pairs", "rm": "pairs", "sft": "examples", "kto": "examples"}
"""Recipe that a goal can name → the unit that the goal counts."""

Kind = TypeVar("Kind")


class SamplingDesign(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks of an adaptive run were sampled, and towards which goal."""

    recipe: str | None = None
    """None for a run that was only topped up by a condition."""
    target: int = 0
    min_reward: float | None = None
    min_gap: float = 0.2
    min_spread: float = 0.0
    band: tuple[float, float] | None = None
    first: int
    """Samples per task in the first stage. Rollout numbers below this did not depend on earlier rewards."""
    whole: int
    most: int
    audit: float = 0.0
    """Share of audited tasks, which get all samples whatever their rewards. Chosen by a seeded draw on the task number."""
    seed: int = 0
    base: int = 0
    """Samples that every task had before adaptive sampling began; 0 if the run began with a goal."""
    top_up: str | None = None
    earlier: int = 0
    """Rollouts on disk when this design began. They count from the start; later rollouts count once the rule asked for them."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its 95 % interval; the ends are None with too few tasks for an interval."""

    value: float
    low: float | None = None
    high: float | None = None


class GoalProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress towards a goal."""

    recipe: str
    unit: str
    """What is counted: groups, pairs or examples."""
    target: int
    usable: int
    tasks: int
    """Tasks with at least one rollout."""
    tokens: int
    """Input and output tokens of the whole run."""
    per_1000_tokens: float | None = None
    """Usable units per 1,000 tokens."""
    needed_tokens: Expectation | None = None
    """Estimated tokens still needed for the goal; None once it is reached, or while nothing usable exists."""
    needed_tasks: Expectation | None = None
    """Estimated tasks still needed for the goal, at the yield so far."""
    dollars_per_unit: float | None = None
    """Cost so far per usable unit; None without a known price, or while nothing usable exists."""
    needed_dollars: Expectation | None = None
    """Estimated dollars still needed for the goal, at the cost per token so far."""

    @property
    def is_reached(self) -> bool:
        return self.usable >= self.target


def priced(goal: GoalProgress, spent: float | None) -> GoalProgress:
    """The progress with dollars filled in, if the cost of the run is known."""
    if spent is None or not goal.tokens:
        return goal
    per_token, tokens = spent / goal.tokens, goal.needed_tokens
    return msgspec.structs.replace(
        goal,
        dollars_per_unit=spent / goal.usable if goal.usable else None,
        needed_dollars=tokens
        and Expectation(
            value=tokens.value * per_token,
            low=None if tokens.low is None else tokens.low * per_token,
            high=None if tokens.high is None else tokens.high * per_token,
        ),
    )


def stage_condition(where: str | None, stage: str | int | None) -> str | None:
    """A SQL condition for the rollouts of one stage, to be joined with the user's own condition.

    Args:
        stage: a condition, a number of samples that each task's rollout numbers stay below, or None for all rollouts.
    """
    if stage is None:
        return where
    condition = f"rollout < {stage}" if isinstance(stage, int) else f"({stage})"
    return condition if where is None else f"({where}) and {condition}"


def read_design(extra: JsonObject) -> SamplingDesign | None:
    """The design in a manifest's `extra`; None for a run that was sampled uniformly."""
    return _read(extra.get(DESIGN), SamplingDesign)


def read_progress(extra: JsonObject) -> GoalProgress | None:
    """The progress in a manifest's `extra`; None without a goal."""
    return _read(extra.get(PROGRESS), GoalProgress)


def _read(value: object, kind: type[Kind]) -> Kind | None:
    try:
        return convert(value, kind) if value else None
    except msgspec.ValidationError:
        return None
