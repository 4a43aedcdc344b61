"""Schedules: which samples of which task to make next.

The plain one goes through the plan's order and asks for everything owed. A schedule with a goal (`goal/schedule.py`) decides from
what came back, so it may have nothing to ask for now and something later.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from rollforge.adaptive.design import GoalProgress
from rollforge.records import Verdict
from rollforge.steps.collect.plan import CollectPlan


class SampleRequest(NamedTuple):
    """Samples of one task to make now."""

    position: int
    samples: list[int]
    stage: str = ""
    """Of an adaptive run: `first`, `more` or `audit`."""


class Schedule(Protocol):
    """Decides what the engine makes."""

    may_ask_again: bool
    """Whether there may be something to ask for after there was nothing."""

    @property
    def expected(self) -> int:
        """Rollouts that the run is to have, as far as that is known."""

    @property
    def owed(self) -> int:
        """Rollouts still to be made, as far as that is known."""

    @property
    def committed(self) -> int:
        """Rollouts that begun groups may still need, decided or not: a budget keeps room for them."""

    def progress(self) -> GoalProgress | None:
        """How far the goal is; None without one."""

    def next_ask(self, *, is_ending: bool) -> SampleRequest | None:
        """What to make next; None when there is nothing now. When the run is ending, only what a begun group still needs."""

    def finished(
        self, position: int, sample: int, response: msgspec.Raw, verdict: Verdict, tokens: int
    ) -> None:
        """A rollout is on disk."""

    def settled(self, position: int) -> bool:
        """All samples of an ask are finished or given up; whether the task is over."""


class PlainSchedule:
    """Everything that is owed, task by task."""

    may_ask_again = False

    def __init__(self, plan: CollectPlan, attempts: int) -> None:
        self._plan = plan
        self._attempts = attempts
        self._order = iter(plan.order)
        self.expected = plan.ledger.expected
        if plan.design is not None:  # only some tasks get the samples that are owed
            owed, given_up = plan.ledger.counts_by_task(attempts)
            self.expected = plan.ledger.finished + int((owed + given_up)[plan.order].sum())

    @property
    def owed(self) -> int:
        if self._plan.design is None:
            return self._plan.ledger.owed(self._attempts)
        return int(self._plan.ledger.counts_by_task(self._attempts)[0][self._plan.order].sum())

    @property
    def committed(self) -> int:
        """A group is asked for as a whole, so nothing beyond what the engine has begun."""
        return 0

    def progress(self) -> GoalProgress | None:
        return None

    def next_ask(self, *, is_ending: bool) -> SampleRequest | None:
        """The next task with owed samples. Budgets end between groups, so an ending run begins none."""
        if is_ending:
            return None
        for position in self._order:
            samples = self._plan.ledger.owed_samples(int(position), self._attempts)
            if samples:
                return SampleRequest(int(position), samples)
        return None

    def finished(
        self, position: int, sample: int, response: msgspec.Raw, verdict: Verdict, tokens: int
    ) -> None:
        """Nothing depends on it."""

    def settled(self, position: int) -> bool:
        return True
