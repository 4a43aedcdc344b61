"""Computes every experience's advantage relative to its group: GRPO, Dr.GRPO, RLOO, REINFORCE++, or step-wise.

A run of several turns counts once in its group, with the reward of its last turn, and its advantage goes to all of its turns,
divided equally with `divide_by_turns`. A group of one has no baseline: its advantage is 0 (not the raw reward), and it is
counted. Group statistics exclude groups of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, groups_of, mean_and_std, run_rewards, spread

Method = Literal["grpo", "drgrpo", "rloo", "reinforce++", "reinforce++-baseline", "step-wise"]

_EPSILON = 1e-6
_WHITENING_EPSILON = 1e-8


class GroupAdvantages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An advantage estimator with its options."""

    method: Method = "grpo"
    tolerance: float = 1e-6
    """Rewards closer than this count as equal: their advantages are exactly 0 instead of amplified noise."""

    divide_by_turns: bool = False
    """Whether the turns of a run divide its advantage, instead of each having all of it, so that long runs weigh no more."""

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        groups = {task: run_rewards(group) for task, group in groups_of(experiences).items()}
        advantage_by_run: dict[str, float] = {}
        for rewards in groups.values():
            advantage_by_run |= self._group(rewards)
        if self.method.startswith("reinforce++"):
            advantage_by_run = _whiten(advantage_by_run, experiences)
        turns = Counter(experience.run for experience in experiences)
        outcome = Outcome(experiences=[], metrics=_metrics(groups, self.tolerance))
        for experience in experiences:
            advantage = advantage_by_run.get(experience.run)
            if advantage is None:
                outcome.dropped["unjudged"] += 1
                continue
            share = turns[experience.run] if self.divide_by_turns else 1
            outcome.experiences.append(with_advantage(experience, advantage / share))
        return outcome

    def _group(self, rewards: Mapping[str, float]) -> dict[str, float]:
        values = list(rewards.values())
        if not values:
            return {}
        if self.method == "reinforce++":
            return dict(rewards)
        if len(values) == 1 or max(values) - min(values) <= self.tolerance:
            return dict.fromkeys(rewards, 0.0)
        mean, std = mean_and_std(values, ddof=1)
        match self.method:
            case "grpo" | "step-wise":
                return {run: (reward - mean) / (std + _EPSILON) for run, reward in rewards.items()}
            case "rloo":
                factor = len(values) / (len(values) - 1)
                return {run: factor * (reward - mean) for run, reward in rewards.items()}
            case _:
                return {run: reward - mean for run, reward in rewards.items()}


def _whiten(advantages: Mapping[str, float], experiences: Sequence[Experience]) -> dict[str, float]:
    """Normalise to zero mean and unit variance over the step's tokens (over its runs if token counts are unknown)."""
    judged = [experience for experience in experiences if experience.run in advantages]
    if not judged:
        return {}
    counts = [experience.mask.sum() if experience.mask is not None else None for experience in judged]
    knows_tokens = all(count is not None for count in counts)
    weights = np.array(counts if knows_tokens else [1.0] * len(judged), dtype=np.float64)
    values = np.array([advantages[experience.run] for experience in judged])
    total = weights.sum()
    if total < 2:
        return dict.fromkeys(advantages, 0.0)
    mean = float((values * weights).sum() / total)
    variance = float((weights * (values - mean) ** 2).sum() / (total - 1))
    return {run: (value - mean) / (variance + _WHITENING_EPSILON) ** 0.5 for run, value in advantages.items()}


def _metrics(groups: Mapping[str, Mapping[str, float]], tolerance: float) -> dict[str, float]:
    real = [list(rewards.values()) for rewards in groups.values() if len(rewards) > 1]
    return {
        **spread("reward_mean", [mean_and_std(values)[0] for values in real]),
        **spread("reward_std", [mean_and_std(values, ddof=1)[1] for values in real]),
        "groups": len(real),
        "single_groups": sum(len(rewards) == 1 for rewards in groups.values()),
        "zero_signal_groups": sum(max(values) - min(values) <= tolerance for values in real),
    }


def with_advantage(experience: Experience, advantage: float) -> Experience:
    """The experience with its advantage, also per token if tokens are known."""
    if experience.mask is None:
        return msgspec.structs.replace(experience, advantage=advantage)
    per_token = np.where(experience.mask, advantage, 0.0).astype(np.float32)
    return msgspec.structs.replace(experience, advantage=advantage, advantages=per_token, returns=per_token)
