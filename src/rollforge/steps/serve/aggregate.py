"""The statistics that NeMo Gym's collector asks a resources server for at the end: per task, per repeat, and over all rollouts.

Names and rules are theirs: `mean/reward`, `std` with n−1 and 0 for a single rollout, usage beside the verifier's numbers. Only
numbers that a verdict brought count, not those that its task row brought along. A masked row, or one that declares a failed judge,
has no reward here, whatever number it carries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from rollforge import stats
from rollforge.intervals import t_quantile
from rollforge.records import FAILURE_KEY, ROLLOUT_KEY, TASK_KEY, JsonFields

VERDICT_FIELDS_KEY = "_rf_verdict_fields"
"""Names of the fields that the verdict added to the row; our `/verify` writes it, their collector passes it on."""
MASK_KEY = "mask_sample"
"""Set to true, it says that a row's reward is no measurement."""

NumberRow = dict[str, float]


def aggregate(rows: list[JsonFields]) -> JsonFields:
    """The answer to `/aggregate_metrics`."""
    judged = [row for row in rows if not row.get(FAILURE_KEY) and not row.get(MASK_KEY)]
    masked = len(rows) - len(judged)
    group_by_task: dict[int, list[JsonFields]] = {}
    for row in judged:
        group_by_task.setdefault(_index(row, TASK_KEY), []).append(row)
    metrics = _statistics([_numbers(row) for row in judged])
    if masked:
        metrics["coverage/masked_rollouts"] = masked
    return {
        "group_level_metrics": [_group(task, group) for task, group in sorted(group_by_task.items())],
        "agent_metrics": metrics,
        "key_metrics": {name: value for name, value in metrics.items() if name.startswith("mean/")},
        "repeat_level_metrics": _repeats(judged),
    }


def _group(task: int, rows: list[JsonFields]) -> JsonFields:
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


def _repeats(rows: list[JsonFields]) -> list[JsonFields]:
    """Statistics over all tasks for each rollout index of an agent, where there are at least two."""
    found: list[JsonFields] = []
    by_agent: dict[str, list[JsonFields]] = {}
    for row in rows:
        by_agent.setdefault(_agent(row), []).append(row)
    for agent, own in sorted(by_agent.items()):
        indices = sorted({_index(row, ROLLOUT_KEY) for row in own})
        tasks = len({_index(row, TASK_KEY) for row in own})
        for index in indices if len(indices) > 1 else []:
            repeat = [row for row in own if _index(row, ROLLOUT_KEY) == index]
            present = len({_index(row, TASK_KEY) for row in repeat})
            found.append(
                {
                    "agent_ref": {"name": agent},
                    ROLLOUT_KEY: index,
                    "sample_count": present,
                    "missing_count": tasks - present,
                    **_statistics([_numbers(row) for row in repeat], is_repeat=True),
                }
            )
    return found


def _agent(row: JsonFields) -> str:
    reference = row.get("agent_ref")
    return str(reference.get("name") or "") if isinstance(reference, dict) else ""


def _index(row: JsonFields, key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _numbers(row: JsonFields) -> NumberRow:
    """The verdict's numbers, then those of the usage. A row without a list of verdict fields counts with all its numbers."""
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    fields = row.get(VERDICT_FIELDS_KEY)
    names = set(fields) if isinstance(fields, list) else row.keys() - {MASK_KEY}
    own = [(key, value) for key, value in row.items() if key in names]
    return _finite([*own, *(usage.items() if isinstance(usage, dict) else ())])


def _finite(items: Iterable[tuple[str, object]]) -> NumberRow:
    return {
        key: float(value)
        for key, value in items
        if isinstance(value, bool | int | float) and not key.startswith("_") and math.isfinite(value)
    }


def _statistics(rows: list[NumberRow], *, is_repeat: bool = False) -> JsonFields:
    found: JsonFields = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = np.array([row[name] for row in rows if name in row])
        summary = stats.summarize(values)
        std = 0.0 if summary.n == 1 else summary.std
        labels = [
            ("mean", summary.mean),
            ("max", summary.max),
            ("min", summary.min),
            ("median", summary.median),
            ("std", std),
        ]
        if is_repeat and std is not None and summary.mean is not None:
            error = std / math.sqrt(summary.n)
            labels += [("sem", error), ("p25", float(np.quantile(values, 0.25)))]
            labels += [("p75", float(np.quantile(values, 0.75)))]
            if summary.n > 1:
                half = t_quantile(0.975, summary.n - 1) * error
                labels += [("ci_low_95", summary.mean - half), ("ci_high_95", summary.mean + half)]
        found |= {f"{label}/{name}": value for label, value in labels if value is not None}
    return found
