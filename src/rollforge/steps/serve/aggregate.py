"""This module computes what NeMo Gym's collector asks a resources server for at the end: statistics per task and over all rollouts.

The names and rules are theirs: `mean/reward`, `std` with n−1 and 0 for a single rollout, usage beside the verifier's numbers.
A row that declares a failed judge has no reward here, whatever number it carries.
"""

from __future__ import annotations

import math

import numpy as np

from rollforge import stats
from rollforge.records import FAILURE_KEY, ROLLOUT_KEY, TASK_KEY, JsonObject


def aggregate(rows: list[JsonObject]) -> JsonObject:
    """The answer to `/aggregate_metrics`."""
    judged = [row for row in rows if not row.get(FAILURE_KEY)]
    group_by_task: dict[int, list[JsonObject]] = {}
    for row in judged:
        group_by_task.setdefault(_index(row, TASK_KEY), []).append(row)
    metrics = _statistics([_numbers(row) for row in judged])
    return {
        "group_level_metrics": [_group(task, group) for task, group in sorted(group_by_task.items())],
        "agent_metrics": metrics,
        "key_metrics": {name: value for name, value in metrics.items() if name.startswith("mean/")},
    }


def _group(task: int, rows: list[JsonObject]) -> JsonObject:
    rows = sorted(rows, key=lambda row: _index(row, ROLLOUT_KEY))
    infos = [
        {
            "rollout_id": f"{task}:{_index(row, ROLLOUT_KEY)}",
            TASK_KEY: task,
            ROLLOUT_KEY: _index(row, ROLLOUT_KEY),
            **_numbers(row),
        }
        for row in rows
    ]
    return {
        TASK_KEY: task,
        **_statistics([_numbers(row) for row in rows]),
        "sample": {"agent_ref": rows[0].get("agent_ref")},
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": infos,
    }


def _index(row: JsonObject, key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _numbers(row: JsonObject) -> dict[str, float]:
    """Every number at the top of the row, then those of its usage; keys of the collector itself are no metrics."""
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    found = {**row, **(usage if isinstance(usage, dict) else {})}
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, bool | int | float) and not key.startswith("_") and math.isfinite(value)
    }


def _statistics(rows: list[dict[str, float]]) -> JsonObject:
    found: JsonObject = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        summary = stats.summarize(np.array([row[name] for row in rows if name in row]))
        std = 0.0 if summary.n == 1 else summary.std
        for label, value in (
            ("mean", summary.mean),
            ("max", summary.max),
            ("min", summary.min),
            ("median", summary.median),
            ("std", std),
        ):
            if value is not None:
                found[f"{label}/{name}"] = value
    return found
