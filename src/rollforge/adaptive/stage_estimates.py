"""Estimates from the whole groups of an adaptive run, by known inclusion probabilities.

Whether a task is filled up depends on its first samples, so complete groups are a biased sample of tasks. Audited tasks were
drawn before anything was known, so within a stratum (the tasks with the same first-stage outcome) they are an unbiased sample. A
stratum's mean is that of its audited tasks, or of all its tasks if all are complete; its weight is its share of all tasks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollforge.statistics.intervals import LEVEL, normal_quantile
from rollforge.statistics.stats import Floats, Ints

LEAST_AUDITED = 10
"""Audited tasks that a stratum needs for an estimate."""

NEARLY_ALL = 0.98
"""A stratum with at least this share of complete groups counts as complete: the remaining tasks failed."""


class StageEstimate(NamedTuple):
    """A mean over tasks, or the reason why it cannot be estimated."""

    value: float | None
    ci: list[float] | None
    tasks: int
    """Tasks with a complete group, on which the estimate is based."""
    reason: str = ""


def over_strata(
    values: Floats,
    stratum: Ints,
    is_audited: NDArray[np.bool_],
    *,
    is_share: bool = True,
    is_certain: NDArray[np.bool_] | None = None,
) -> StageEstimate:
    """Mean over all tasks of a value that only complete groups have.

    Args:
        values: one per task, NaN where its group is not whole.
        stratum: number of the outcome of its first stage.
        is_share: values lie between 0 and 1.
        is_certain: tasks whose first stage settles the value: a task solved once is solved in 8.
    """
    count = len(values)
    if not count:
        return StageEstimate(None, None, 0, "no task was begun")
    mean = between = within = 0.0
    used = 0
    parts: list[tuple[float, float]] = []
    for number in np.unique(stratum).tolist():
        here = stratum == number
        share = float(here.mean())
        has_value = here & ~np.isnan(values)
        if has_value.sum() < NEARLY_ALL * here.sum():
            has_value &= is_audited
            if has_value.sum() < LEAST_AUDITED:
                return StageEstimate(
                    None,
                    None,
                    0,
                    f"{int(has_value.sum())} audited tasks for one outcome of the first stage, {LEAST_AUDITED} are needed",
                )
        known_values = values[has_value]
        used += len(known_values)
        parts.append((share, float(known_values.mean())))
        if is_certain is None or not is_certain[here].all():
            within += share**2 * _variance(known_values, is_share=is_share) / len(known_values)
    mean = sum(share * value for share, value in parts)
    between = sum(share * (value - mean) ** 2 for share, value in parts) / count
    half = normal_quantile((1 + LEVEL) / 2) * math.sqrt(within + between)
    low, high = mean - half, mean + half
    if is_share:
        low, high = max(low, 0.0), min(high, 1.0)
    return StageEstimate(mean, [low, high], used)


def _variance(values: Floats, *, is_share: bool) -> float:
    """Variance between tasks. For shares it is smoothed and never 0: few tasks without a success say little about the next."""
    plain = float(values.var(ddof=1)) if len(values) > 1 else 0.0
    if not is_share:
        return plain
    smoothed = (float(values.sum()) + 0.5) / (len(values) + 1)
    return max(plain, smoothed * (1 - smoothed))
