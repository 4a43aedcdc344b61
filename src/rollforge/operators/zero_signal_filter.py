"""Drops groups whose rewards are all equal, which give a group-relative trainer no gradient.

Rewards count as equal if max − min ≤ `tolerance`. A test for a standard deviation of 0 would fail, because rounding makes the
deviation of equal numbers tiny but not zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, groups_of, run_rewards, sift


class ZeroSignalFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keeps groups whose rewards differ."""

    tolerance: float = 1e-6
    metric: str | None = None
    """Metric to test instead of the reward, since shaping makes rewards differ even if outcomes do not."""
    solved: float | None = None
    """Threshold with which dropped groups are counted separately: `all_solved` (at or above) and `none_solved`."""

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        reason_by_task = {task: self._group_reason(group) for task, group in groups_of(experiences).items()}
        outcome = sift(experiences, lambda experience: reason_by_task[experience.task])
        reasons = list(reason_by_task.values())
        outcome.metrics["groups_in"] = len(reasons)
        outcome.metrics["groups_out"] = reasons.count(None)
        return outcome

    def _group_reason(self, group: Sequence[Experience]) -> str | None:
        if self.metric is None:
            values = list(run_rewards(group).values())
        else:
            values = [e.metrics[self.metric] for e in group if self.metric in e.metrics]
        if not values:
            return "unjudged"
        if len(values) == 1:
            return "single"
        if max(values) - min(values) > self.tolerance:
            return None
        if self.solved is None:
            return "zero_signal"
        return "all_solved" if min(values) >= self.solved else "none_solved"
