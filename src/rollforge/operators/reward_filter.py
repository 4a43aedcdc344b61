"""Keeps experiences whose reward lies between `min` and `max`; unjudged experiences are dropped under a separate reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, sift


class RewardFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A band of rewards, both ends included."""

    min: float | None = None
    max: float | None = None

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        return sift(experiences, self._reason)

    def _reason(self, experience: Experience) -> str | None:
        reward = experience.reward
        if reward is None:
            return "unjudged"
        if not math.isfinite(reward):
            return "not_finite"
        if self.min is not None and reward < self.min:
            return "below_min"
        return "above_max" if self.max is not None and reward > self.max else None
