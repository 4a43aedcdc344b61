"""The operator protocol and its result: kept experiences, reasons for dropped ones, metrics.

An operator gets the experiences of one step, in whole groups, and preserves the order of those it keeps. It never changes an
experience in place. No operator treats an unjudged experience (`reward` None) as zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from rollforge.experience import Experience


class Outcome(msgspec.Struct, kw_only=True):
    """Result of one operator for one step."""

    experiences: list[Experience]
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    """Reason → number of dropped experiences; together with `experiences` they account for all inputs."""
    metrics: dict[str, float] = {}
    """The operator's own numbers, without its name as prefix."""


class Operator(Protocol):
    """A step of the pipeline. Members are frozen records of their options, decoded from the pipeline's file."""

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        """Apply the operator; returns the kept experiences and why the others were dropped."""


def sift(experiences: Iterable[Experience], reason_of: Callable[[Experience], str | None]) -> Outcome:
    """Keep the experiences for which `reason_of` gives no reason to drop them."""
    outcome = Outcome(experiences=[])
    for experience in experiences:
        reason = reason_of(experience)
        if reason is None:
            outcome.experiences.append(experience)
        else:
            outcome.dropped[reason] += 1
    return outcome


def groups_of(experiences: Iterable[Experience]) -> dict[str, list[Experience]]:
    """Task → its experiences, both in order of first appearance."""
    groups: dict[str, list[Experience]] = {}
    for experience in experiences:
        groups.setdefault(experience.task, []).append(experience)
    return groups


def run_rewards(group: Iterable[Experience]) -> dict[str, float]:
    """Run → the reward of its last turn, so that a run of many turns counts once in its group. Unjudged runs are omitted."""
    last: dict[str, Experience] = {}
    for experience in group:
        latest = last.get(experience.run)
        if latest is None or experience.turn >= latest.turn:
            last[experience.run] = experience
    return {run: experience.reward for run, experience in last.items() if experience.reward is not None}


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """`{name}/mean|max|min` of values; nothing without values."""
    if not values:
        return {}
    return {
        f"{name}/mean": math.fsum(values) / len(values),
        f"{name}/max": max(values),
        f"{name}/min": min(values),
    }


def mean_and_std(values: Sequence[float], ddof: int = 0) -> tuple[float, float]:
    """Mean and standard deviation; the deviation is 0 with too few values."""
    mean = math.fsum(values) / len(values)
    if len(values) <= ddof:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))
