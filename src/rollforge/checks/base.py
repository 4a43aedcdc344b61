"""The check protocol: a check is a function over the evidence of a run that yields findings.

A check never prints, and it never decides an exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import numpy as np

from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Area, Finding, Recipe
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.runtime.prints import prints_on_stderr
from rollforge.runtime.typed_decoding import convert

Limits = Mapping[str, float]
"""The options of one check, by name, as set for this run."""

FindingLike = Finding | Mapping[str, object]
"""A finding, or a mapping with its fields, as a user's own check may return."""

CheckResult = FindingLike | Iterable[FindingLike] | None


@dataclass(frozen=True)
class Check:
    """One rule about runs."""

    id: str
    area: Area
    function: Callable[..., CheckResult]
    options: Mapping[str, float]
    recipes: tuple[Recipe, ...] = ()
    """Recipes that the check belongs to; a check without recipes always runs."""
    spares: tuple[Recipe, ...] = ()
    """Recipes that filter out the offending rollouts: for these, an error of this check is only a warning."""
    takes_limits: bool = True
    summary: str = ""

    def run(self, run: Evidence, limits: Limits) -> list[Finding]:
        """Findings on this run, each with the check's id."""
        with prints_on_stderr():
            result = self.function(run, limits) if self.takes_limits else self.function(run)
            return [_as_finding(item, self) for item in _as_list(result)]


def _as_list(result: CheckResult) -> list[FindingLike]:
    if result is None:
        return []
    if isinstance(result, Finding | Mapping):
        return [result]
    return list(result)


def _as_finding(item: FindingLike, check: Check) -> Finding:
    fields = msgspec.structs.asdict(item) if isinstance(item, Finding) else item
    finding = convert({name: _plain(value) for name, value in fields.items()}, Finding)
    return msgspec.structs.replace(finding, id=finding.id or check.id, area=finding.area or check.area)


def _plain(value: Any) -> Any:
    """Python numbers instead of numpy scalars."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def check(
    id: str,
    area: Area,
    *,
    recipes: tuple[Recipe, ...] = (),
    spares: tuple[Recipe, ...] = (),
    **options: float,
) -> Callable[[Callable[..., CheckResult]], Check]:
    """Turn a function of (evidence, limits) into a check; keyword arguments are its options with their defaults."""

    def wrap(function: Callable[..., CheckResult]) -> Check:
        summary = (function.__doc__ or "").strip().split("\n")[0]
        return Check(id, area, function, options, recipes, spares, summary=summary)

    return wrap


def as_check(member: Any, name: str) -> Check:
    """A user's check as a `Check`: accepts a `Check`, or a plain function of the evidence and optionally of its limits."""
    if isinstance(member, Check):
        return _in_known_area(member)
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
    made = Check(
        id=str(getattr(member, "id", name)),
        area=getattr(member, "area", "collection"),
        function=member,
        options=options,
        recipes=tuple(getattr(member, "recipes", ())),
        takes_limits=len(parameters) > 1,
        summary=summary,
    )
    return _in_known_area(made)


def _in_known_area(check: Check) -> Check:
    """Return the check if its area is known; refuse it otherwise, since findings are printed by area."""
    areas = get_args(Area)
    if check.area not in areas:
        raise UsageError(
            f"the check {check.id} has the area {check.area!r}{did_you_mean(str(check.area), list(areas))}",
            hint=f"areas are: {', '.join(areas)}",
        )
    return check
