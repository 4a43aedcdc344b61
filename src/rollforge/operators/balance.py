"""Balances a step: at most `max_per_task` experiences of a task, and a bounded ratio of failures per success.

The dropped ones are drawn by `seed` and the experience's id, so the choice does not depend on the order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, groups_of


class Balance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits per task and between outcomes."""

    max_per_task: int | None = None
    ratio: float | None = None
    """Largest ratio of failures to successes within each task; if failures are scarce, surplus successes are dropped too."""
    solved: float = 1.0
    seed: int = 0

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        outcome = Outcome(experiences=[])
        chosen_ids: set[str] = set()
        for group in groups_of(experiences).values():
            chosen = self._even(group)
            outcome.dropped["surplus_outcome"] += len(group) - len(chosen)
            limited = self._draw(chosen, self.max_per_task)
            outcome.dropped["surplus_task"] += len(chosen) - len(limited)
            chosen_ids |= {experience.id for experience in limited}
        outcome.dropped += type(outcome.dropped)()  # reasons that dropped nothing are left out
        outcome.experiences = [experience for experience in experiences if experience.id in chosen_ids]
        return outcome

    def _even(self, group: Sequence[Experience]) -> list[Experience]:
        if self.ratio is None:
            return list(group)
        right = [e for e in group if e.reward is not None and e.reward >= self.solved]
        wrong = [e for e in group if e.reward is not None and e.reward < self.solved]
        few = min(len(right), math.ceil(len(wrong) / self.ratio) if self.ratio else len(right))
        return [*self._draw(right, few), *self._draw(wrong, int(few * self.ratio))]

    def _draw(self, experiences: Iterable[Experience], count: int | None) -> list[Experience]:
        ranked = sorted(experiences, key=lambda e: hashlib.blake2b(f"{self.seed}:{e.id}".encode()).digest())
        return ranked[:count]
