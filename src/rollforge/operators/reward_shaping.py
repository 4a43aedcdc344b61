"""Adds weighted metrics to the reward: reward × `scale` + Σ weight × metric + `offset`, then clipped.

The reward before shaping stays in `metrics["unshaped_reward"]`. A missing metric contributes nothing, and the experience is
counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, spread


class RewardShaping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights, scale and offset of a linear reward."""

    scale: float = 1.0
    offset: float = 0.0
    weights: dict[str, float] = {}
    """Metric → weight."""
    min: float | None = None
    max: float | None = None

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        shaped = [self._shaped(experience) for experience in experiences]
        changes = [
            new.reward - old.reward
            for new, old in zip(shaped, experiences, strict=True)
            if new.reward is not None and old.reward is not None
        ]
        missing = sum(
            metric not in experience.metrics for experience in experiences for metric in self.weights
        )
        return Outcome(experiences=shaped, metrics={**spread("reward_diff", changes), "missing": missing})

    def _shaped(self, experience: Experience) -> Experience:
        if experience.reward is None:
            return experience
        added = sum(weight * experience.metrics.get(metric, 0.0) for metric, weight in self.weights.items())
        reward = experience.reward * self.scale + self.offset + added
        if self.min is not None:
            reward = max(reward, self.min)
        if self.max is not None:
            reward = min(reward, self.max)
        metrics = {"unshaped_reward": experience.reward, **experience.metrics}
        return msgspec.structs.replace(experience, reward=reward, metrics=metrics)
