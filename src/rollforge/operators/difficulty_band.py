"""Keeps tasks whose pass rate lies between `min` and `max`, and records their difficulty on each experience.

An experience passes if its outcome (`metric`, or the reward) is at least `solved`. The share of failures becomes `difficulty`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, groups_of, run_rewards, sift, spread


class DifficultyBand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A band of pass rates, both ends included."""

    min: float = 0.0
    max: float = 1.0
    solved: float = 1.0
    metric: str | None = None

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        rate_by_task = {task: self._pass_rate(group) for task, group in groups_of(experiences).items()}

        def reason(experience: Experience) -> str | None:
            rate = rate_by_task[experience.task]
            if rate is None:
                return "unjudged"
            return "too_hard" if rate < self.min else "too_easy" if rate > self.max else None

        outcome = sift(experiences, reason)
        outcome.experiences = [
            msgspec.structs.replace(experience, difficulty=1.0 - (rate_by_task[experience.task] or 0.0))
            for experience in outcome.experiences
        ]
        outcome.metrics = spread("pass_rate", [rate for rate in rate_by_task.values() if rate is not None])
        return outcome

    def _pass_rate(self, group: Sequence[Experience]) -> float | None:
        if self.metric is None:
            values = list(run_rewards(group).values())
        else:
            values = [e.metrics[self.metric] for e in group if self.metric in e.metrics]
        return sum(value >= self.solved for value in values) / len(values) if values else None
