"""Findings, and how much evidence each level takes.

A threshold alone is no proof: an error is given only when the interval around the value clears the threshold. Until then the
finding is a warning that says how many more rollouts would settle it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

from rollforge.statistics.intervals import normal_quantile, wilson

Level = Literal["error", "warning", "note"]
Area = Literal["verification", "collection", "confounds", "distribution", "recipe"]
Recipe = Literal["sft", "dpo", "kto", "rm", "ppo", "grpo"]

RECIPES: tuple[Recipe, ...] = ("sft", "dpo", "kto", "rm", "ppo", "grpo")

CERTAINTY = 0.99
"""Confidence level of every interval that a finding's level depends on."""

Z = normal_quantile((1 + CERTAINTY) / 2)

SAMPLE = 10
"""A run with fewer than this multiple of the rollouts that a recipe wants is a sample: too few rollouts prove nothing."""

Location = dict[str, int | float | str | None]
"""A location in the run: `task`, `rollout` and `line` of a rollout; `task` alone; or the ends of a stretch (`first_line`,
`last_line`).
"""


class Finding(msgspec.Struct, kw_only=True):
    """The result of a check: something a person can act on and a pipeline can branch on."""

    level: Level
    text: str
    """One sentence, with the numbers."""
    id: str = ""
    """The check's id, filled in by `Check.run`."""
    area: str = ""
    value: float | None = None
    threshold: float | None = None
    n: int | None = None
    """Number of observations behind the value."""
    interval: list[float] | None = None
    where: list[Location] = []
    """Offending tasks or lines."""
    next: str = ""
    """The next step: a command that works when pasted, if there is one."""
    quotes: list[str] = []
    """Words of prompts and answers in `text`, such as the name of a tool; a report without texts leaves them out."""
    is_incomplete: bool = False
    """Whether the run is too incomplete for a conclusion."""
    needs_more: bool = False
    """Whether more rollouts of the same kind would make the run fit; until then the verdict is "not yet"."""
    is_final: bool = False
    """Whether no number of further rollouts of the same kind would make the run fit for this recipe."""


@dataclass(frozen=True)
class Share:
    """A share with its interval, to be compared with two limits."""

    count: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.count / self.n if self.n else 0.0

    @property
    def interval(self) -> list[float]:
        return [round(self.low, 6), round(self.high, 6)]

    def level_above(self, *, warning: float, error: float) -> Level | None:
        """Level of a share that should be low: an error only when the whole interval is above the limit."""
        if not self.count:
            return None
        if self.low > error:
            return "error"
        if self.value > error or self.low > warning:
            return "warning"
        return "note" if self.value > warning else None

    def level_below(self, *, warning: float, error: float) -> Level | None:
        """Level of a share that should be high: an error only when the whole interval is below the limit."""
        if self.high < error:
            return "error"
        if self.value < error or self.high < warning:
            return "warning"
        return "note" if self.value < warning else None


def share(count: float, n: float, *, independent: float | None = None) -> Share:
    """The share count / n with Wilson's interval; `independent` is the effective sample size when values are correlated."""
    if n <= 0:
        return Share(0, 0, 0.0, 1.0)
    effective = max(1.0, min(independent if independent is not None else n, n))
    low, high = wilson(count / n, effective, Z)
    return Share(int(count), int(n), low, high)


def more_needed(value: float, limit: float, n: float) -> int | None:
    """How many more rollouts bring the interval clear of the limit, if the share stays the same; None if no number does."""
    gap = abs(value - limit)
    if gap < 1e-9 or n <= 0:
        return None
    spread = max(value * (1 - value), limit * (1 - limit), 1.0 / n)
    return max(0, math.ceil(Z * Z * spread / (gap * gap) - n))


def settle_text(estimate: Share, level: Level | None, limit: float) -> str:
    """A clause on how many more rollouts would settle the question; empty when it is settled."""
    if level != "warning" or estimate.low > limit or estimate.high < limit:
        return ""
    more = more_needed(estimate.value, limit, estimate.n)
    if more is None or more == 0:
        return ""
    rounded = round(more, 1 - len(str(more))) if more >= 10 else more
    return f"; about {rounded:,} more rollouts would settle it"
