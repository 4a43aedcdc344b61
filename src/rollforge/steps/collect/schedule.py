"""Schedules: decide which samples of which task are made next.

The plain schedule follows the plan's order and requests everything owed. A schedule with a goal (`goal/goal_schedule.py`) decides
from results, so it may have nothing to request now but something later.
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
    """Decides which rollouts the engine makes."""

    may_ask_again: bool
    """Whether `next_ask` may return something after it returned None."""

    @property
    def expected(self) -> int:
        """Number of rollouts that the run will have, as far as known."""

    @property
    def owed(self) -> int:
        """Number of rollouts still to be made, as far as known."""

    @property
    def committed(self) -> int:
        """Rollouts that begun groups may still need, decided or not: a budget keeps room for them."""

    def progress(self) -> GoalProgress | None:
        """Progress of the goal; None without one."""

    def next_ask(self, *, is_ending: bool) -> SampleRequest | None:
        """The next samples to make; None if there are none now. While the run is stopping, only those that a begun group needs."""

    def finished(
        self, position: int, sample: int, response: msgspec.Raw, verdict: Verdict, tokens: int
    ) -> None:
        """Record a rollout that is on disk."""

    def settled(self, position: int) -> bool:
        """All samples of an ask are finished or given up; returns whether the task is complete."""


class PlainSchedule:
    """Requests everything that is owed, task by task."""

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
        """The next task with owed samples. A stopping run begins none, since budgets end between groups."""
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
        """Do nothing: the plain schedule does not depend on results."""

    def settled(self, position: int) -> bool:
        return True
