"""Brings rewards onto one scale, over the step or per task set: unit deviation, or the range 0 to 1.

If all rewards are equal up to rounding, `standard` makes every reward 0, and `range` leaves rewards unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, mean_and_std

_NOISE = 1e-12
"""Differences below this share of the largest reward are rounding errors."""


class NormaliseRewards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A linear scale for rewards."""

    method: Literal["standard", "range"] = "standard"
    over: Literal["step", "taskset"] = "step"

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        rewards: dict[str, list[float]] = {}
        for experience in experiences:
            if experience.reward is not None:
                rewards.setdefault(self._scope(experience), []).append(experience.reward)
        scale_by_scope = {scope: self._scale(values) for scope, values in rewards.items()}
        scaled = [self._scaled(experience, scale_by_scope) for experience in experiences]
        return Outcome(experiences=scaled, metrics={"scales": len(scale_by_scope)})

    def _scope(self, experience: Experience) -> str:
        return experience.taskset if self.over == "taskset" else ""

    def _scale(self, values: list[float]) -> tuple[float, float]:
        """Offset to subtract and divisor; a divisor of 0 results in 0."""
        low, high = min(values), max(values)
        if high - low <= _NOISE * max(abs(low), abs(high)):
            return (0.0, 0.0) if self.method == "standard" else (0.0, 1.0)
        return mean_and_std(values) if self.method == "standard" else (low, high - low)

    def _scaled(self, experience: Experience, scales: dict[str, tuple[float, float]]) -> Experience:
        if experience.reward is None:
            return experience
        offset, divisor = scales[self._scope(experience)]
        metrics = {"unscaled_reward": experience.reward, **experience.metrics}
        reward = (experience.reward - offset) / divisor if divisor else 0.0
        return msgspec.structs.replace(experience, reward=reward, metrics=metrics)
