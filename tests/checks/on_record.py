"""What checks say at the very numbers where they change their mind: the limits, and the sizes of a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollforge.checks import MEMBERS
from rollforge.checks.base import Check
from rollforge.registry import load_target
from rollforge.testing import MadeRun, Shape, healthy_run, sick_run

CHECKS = [load_target(target) for target in MEMBERS.values()]

DEFECTS = (
    "always-zero", "always-one", "always-half", "agent-broken", "family-broken", "judges-the-task", "breaks-halfway",
    "worse-from-a-point", "fails-fast", "errors-begin", "rewards-empty", "rewards-echoes", "field-appears", "hard-ones-fail",
    "tools-unseen", "seed-fixed", "pays-for-length", "magic-words", "logprobs-lost", "nearly-copies",
)  # fmt: skip

SIZES = (2, 5, 10, 20, 30, 50, 100)

MOST = 3
"""Borders on record of each limit."""


class Noting(np.float64):
    """A limit that notes the numbers it is compared with."""

    seen: list[float]

    def _noted(self, other: Any) -> np.float64:
        if np.ndim(other) == 0:
            self.seen.append(float(other))
        return np.float64(self)

    def __lt__(self, other: Any) -> Any:
        return self._noted(other) < other

    def __le__(self, other: Any) -> Any:
        return self._noted(other) <= other

    def __gt__(self, other: Any) -> Any:
        return self._noted(other) > other

    def __ge__(self, other: Any) -> Any:
        return self._noted(other) >= other


def runs() -> Iterator[tuple[str, MadeRun]]:
    yield "healthy", healthy_run(Shape(tasks=200, samples=8, form="collected"), seed=1)
    yield "small", healthy_run(Shape(tasks=12, samples=4, form="collected"), seed=2)
    for name in DEFECTS:
        yield name, sick_run(name, seed=11)


def found(check: Check, evidence: Any, limits: dict[str, float]) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [(one.level, one.text) for one in check.run(evidence, limits)]
        except (ValueError, ZeroDivisionError):  # of a limit that nobody sets, such as a chance of 0
            return [("no limit", "")]


def borders(check: Check, name: str, evidence: Any) -> Iterator[str]:
    """The numbers that a limit is compared with, and whether the check is then as below the limit or as above."""
    noting = Noting(check.options[name])
    noting.seen = []
    found(check, evidence, {**check.options, name: noting})
    for number in sorted(set(noting.seen)):
        if math.isfinite(number):
            below, at, above = (
                found(check, evidence, {**check.options, name: one})
                for one in (math.nextafter(number, -math.inf), number, math.nextafter(number, math.inf))
            )
            if below != above:
                levels = ["+".join(level for level, _ in one) or "nothing" for one in (below, above)]
                yield f"{number:.5g} {'below' if at == below else 'above'} of {levels[0]}, {levels[1]}"


def at_their_limits() -> dict[str, list[str]]:
    """Every limit of a check, set to the very numbers that it is compared with."""
    made: dict[str, list[str]] = {}
    for name, run in runs():
        evidence = run.evidence()
        for check in CHECKS:
            for limit in check.options:
                known = made.setdefault(f"{check.id} {limit}", [])
                if len(known) < MOST:
                    known += [f"{name} {one}" for one in borders(check, limit, evidence)][: MOST - len(known)]
    return {limit: known for limit, known in made.items() if known}


def at_their_sizes() -> dict[str, str]:
    """The numbers of tasks at which the findings of a check change."""
    made: dict[str, str] = {}
    for name in (
        "healthy",
        "always-zero",
        "breaks-halfway",
        "rewards-empty",
        "fails-fast",
        "pays-for-length",
    ):
        for samples in (1, 4):
            said: dict[str, str] = {}
            for tasks in sorted({size + more for size in SIZES for more in (-1, 0, 1)}):
                shape = Shape(tasks=tasks, samples=samples, form="collected", unjudged=0.0, failed=0.0)
                run = healthy_run(shape, seed=1) if name == "healthy" else sick_run(name, seed=1, shape=shape)
                evidence = run.evidence()
                for check in CHECKS:
                    levels = (
                        "+".join(level for level, _ in found(check, evidence, {**check.options})) or "nothing"
                    )
                    if said.get(check.id, "nothing") != levels:
                        key = f"{name} x{samples}: {check.id}"
                        made[key] = f"{made[key]}, {tasks} {levels}" if key in made else f"{tasks} {levels}"
                    said[check.id] = levels
    return made
