"""This module says what a check and a finding are, and how much evidence each level takes.

A check is a function over the evidence of a run that yields findings; it never prints, and it never decides an exit code.
A threshold alone is no proof: an error is given only when the interval around the value clears the threshold. Until then the
finding is a warning that says how many more rollouts would settle it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from rollforge.records import JsonObject
from rollforge.stats import normal_quantile, wilson

if TYPE_CHECKING:
    from rollforge.checks.evidence import Evidence

Level = Literal["error", "warning", "note"]
Area = Literal["verification", "collection", "confounds", "distribution", "recipe"]
Recipe = Literal["sft", "dpo", "kto", "rm", "ppo", "grpo"]

RECIPES: tuple[Recipe, ...] = ("sft", "dpo", "kto", "rm", "ppo", "grpo")

CERTAINTY = 0.99
"""The share of intervals that hold the truth, for everything a finding's level depends on."""

Z = normal_quantile((1 + CERTAINTY) / 2)

SAMPLE = 10
"""A run of fewer than this many times the rollouts that a recipe wants is a sample: too few of something in it proves nothing."""

Limits = Mapping[str, float]
"""The options of one check, by name, as set for this run."""


class Finding(msgspec.Struct, kw_only=True):
    """What a check found: something a person can act on and a pipeline can branch on."""

    level: Level
    text: str
    """One sentence, with the numbers."""
    id: str = ""
    """The check's id; filled in by whoever runs the check."""
    area: str = ""
    value: float | None = None
    threshold: float | None = None
    n: int | None = None
    """What the value is over."""
    interval: list[float] | None = None
    where: list[JsonObject] = []
    """Offending tasks or lines."""
    next: str = ""
    """What to do about it: a command that works when pasted, where there is one."""
    is_incomplete: bool = False
    """The run is too incomplete to say more."""
    needs_more: bool = False
    """More rollouts of the same kind would make the run fit: until they are there, the answer is "not yet"."""
    is_final: bool = False
    """No further rollouts of the same kind would make the run fit for this recipe."""


Found = Finding | JsonObject | Iterable[Finding | JsonObject] | None


@dataclass(frozen=True)
class Check:
    """One rule about runs."""

    id: str
    area: Area
    function: Callable[..., Found]
    options: Mapping[str, float]
    recipes: tuple[Recipe, ...] = ()
    """The recipes it is asked for; a check without any is asked always."""
    takes_limits: bool = True
    summary: str = ""

    def run(self, run: Evidence, limits: Limits) -> list[Finding]:
        """The findings on this run, each with the check's id."""
        found = self.function(run, limits) if self.takes_limits else self.function(run)
        return [_finding(item, self) for item in _as_list(found)]


def _as_list(found: Found) -> list[Finding | JsonObject]:
    if found is None:
        return []
    if isinstance(found, Finding | dict):
        return [found]
    return list(found)


def _finding(item: Finding | JsonObject, check: Check) -> Finding:
    told = item if isinstance(item, dict) else msgspec.structs.asdict(item)
    finding = msgspec.convert({name: _plain(value) for name, value in told.items()}, Finding)
    return msgspec.structs.replace(finding, id=finding.id or check.id, area=finding.area or check.area)


def _plain(value: Any) -> Any:
    """Numbers of numpy, which a check works with, as Python's own."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def check(
    id: str, area: Area, *, recipes: tuple[Recipe, ...] = (), **options: float
) -> Callable[[Callable[..., Found]], Check]:
    """Make a function of (evidence, limits) a check; keyword arguments are its options with their defaults."""

    def wrap(function: Callable[..., Found]) -> Check:
        summary = (function.__doc__ or "").strip().split("\n")[0]
        return Check(id, area, function, options, recipes, summary=summary)

    return wrap


def as_check(member: Any, name: str) -> Check:
    """A user's member as a check: a `Check`, or a plain function of the evidence (and, if it takes two, of its limits)."""
    import inspect

    if isinstance(member, Check):
        return member
    parameters = [
        item
        for item in inspect.signature(member).parameters.values()
        if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    summary = (inspect.getdoc(member) or "").split("\n")[0]
    options = {
        key: float(value)
        for key, value in getattr(member, "options", {}).items()
        if isinstance(value, int | float)
    }
    return Check(
        id=str(getattr(member, "id", name)),
        area=getattr(member, "area", "collection"),
        function=member,
        options=options,
        recipes=tuple(getattr(member, "recipes", ())),
        takes_limits=len(parameters) > 1,
        summary=summary,
    )


# How sure


@dataclass(frozen=True)
class Share:
    """A share with its interval, and how it stands to two limits."""

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
        """How bad it is that the share is high: an error only when the whole interval is above the limit."""
        if not self.count:
            return None
        if self.low > error:
            return "error"
        if self.value > error or self.low > warning:
            return "warning"
        return "note" if self.value > warning else None

    def level_below(self, *, warning: float, error: float) -> Level | None:
        """How bad it is that the share is low: an error only when the whole interval is below the limit."""
        if self.high < error:
            return "error"
        if self.value < error or self.high < warning:
            return "warning"
        return "note" if self.value < warning else None


def share(count: float, n: float, *, independent: float | None = None) -> Share:
    """The share count / n with Wilson's interval; `independent` is how many values n are worth when some are alike."""
    if n <= 0:
        return Share(0, 0, 0.0, 1.0)
    effective = max(1.0, min(independent if independent is not None else n, n))
    low, high = wilson(count / n, effective, Z)
    return Share(int(count), int(n), low, high)


def more_needed(value: float, limit: float, n: float) -> int | None:
    """How many more rollouts would let the interval clear the limit, if the share stays what it is; None if never."""
    gap = abs(value - limit)
    if gap < 1e-9 or n <= 0:
        return None
    spread = max(value * (1 - value), limit * (1 - limit), 1.0 / n)
    return max(0, math.ceil(Z * Z * spread / (gap * gap) - n))


def settle_text(found: Share, level: Level | None, limit: float) -> str:
    """A clause on how many more rollouts would settle it; empty when it is settled."""
    if level != "warning" or found.low > limit or found.high < limit:
        return ""
    more = more_needed(found.value, limit, found.n)
    if more is None or more == 0:
        return ""
    rounded = round(more, 1 - len(str(more))) if more >= 10 else more
    return f"; about {rounded:,} more rollouts would settle it"
