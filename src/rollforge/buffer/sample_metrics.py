"""The `sample/*` metrics of one batch that a trainer received.

A metric is absent when no experience of the batch has its field; counts say how many have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rollforge.experience import Experience


def sample_metrics(
    experiences: Sequence[Experience],
    *,
    version: int | None = None,
    now: float | None = None,
    waited: float = 0.0,
    counters: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """`model_version`, `staleness`, `age`, `reuse`, `reward`, counts, waiting time and the buffer's own
    counters."""
    versions = [e.model_version for e in experiences if e.model_version is not None]
    numbers: dict[str, float] = {
        "sample/experience_count": len(experiences),
        "sample/task_count": len({e.task for e in experiences}),
        "sample/run_count": len({e.run for e in experiences}),
    }
    numbers |= _spread("model_version", versions)
    if version is not None:
        numbers |= _spread("staleness", [version - made for made in versions])
    if now is not None:
        numbers |= _spread("age", [now - e.created for e in experiences if e.created is not None])
    numbers |= _spread("reuse", [e.uses for e in experiences])
    rewards = [e.reward for e in experiences if e.reward is not None]
    numbers |= _spread("reward", rewards)
    if rewards:
        mean = math.fsum(rewards) / len(rewards)
        numbers["sample/reward/std"] = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
        numbers["sample/reward/count"] = len(rewards)
    numbers["sample/waiting_time"] = waited
    for name, value in (counters or {}).items():
        numbers[f"sample/buffer/{name}"] = value
    if counters is not None:
        numbers["sample/evicted"] = counters.get("evicted", 0)
    return numbers


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"sample/{name}/mean": math.fsum(values) / len(values),
        f"sample/{name}/max": max(values),
        f"sample/{name}/min": min(values),
    }
