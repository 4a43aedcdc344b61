"""Probability that the model solves a task, and the outcome of single samples.

It falls with the task's difficulty and has a random effect per task, so that the pass rates of a task file spread over 0 to 1: some
tasks are never solved, some always, many sometimes.
"""

from __future__ import annotations

import math
from functools import lru_cache

from rollforge.simulate.draws import Chance

_SLOPE = 5.0
_TASK_SPREAD = 1.7
_CERTAIN = 0.05
"""Probabilities closer than this to 0 or 1 become 0 or 1, since real models always or never solve some tasks."""


@lru_cache(maxsize=4096)
def pass_rate(seed: int, task: str, difficulty: float, skill: float) -> float:
    """Probability that a sample of the task is right.

    Args:
        seed: the server's seed; it determines the random effect of each task.
        task: the key of the canonical prompt.
        difficulty: 0 to 1.
        skill: 0 to 1; at 0.5, half the samples of a medium task are right.
    """
    effect = _TASK_SPREAD * Chance("task effect", seed, task).normal()
    chance = 1 / (1 + math.exp(-(_SLOPE * (skill - difficulty + 0.5 * (skill - 0.5)) + effect)))
    if chance < _CERTAIN:
        return 0.0
    return 1.0 if chance > 1 - _CERTAIN else chance


def is_solved(seed: int, task: str, sample: int, difficulty: float, skill: float) -> bool:
    """Whether this sample of the task is right."""
    return Chance("solved", seed, task, sample).happens(pass_rate(seed, task, difficulty, skill))
